"""The table of chips: one YAML file a chip, with the source of its numbers."""

from pathlib import Path

import yaml

from kokoro_npu.compile.options import Target
from kokoro_npu.errors import KokoroNpuError, did_you_mean

TABLE = Path("conf/target")
"""Where the table lies, below the root of a clone."""
DEFAULT = "sm8650"
"""The chip of the commands that ask for one."""


def read_chip(name: str, table: Path = TABLE) -> Target:
    """The chip that ``<table>/<name>.yaml`` describes.

    Raises:
        KokoroNpuError: there is no such file (the message names the nearest chips), or it does not hold exactly the
            fields of a :class:`~kokoro_npu.compile.options.Target`, its numbers positive integers.
    """
    path = table / f"{name}.yaml"
    if not path.is_file():
        hint = did_you_mean(name, (other.stem for other in table.glob("*.yaml")))
        raise KokoroNpuError(f"{name!r} is not in the table of chips; {hint} (a new chip is a new file in {table})")
    try:
        chip = Target(**yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, TypeError) as error:
        raise KokoroNpuError(f"{path} describes no chip: {error}") from None
    for key in ("soc_model", "htp_arch", "vtcm_mb"):
        value = getattr(chip, key)
        if type(value) is not int or value < 1:
            raise KokoroNpuError(f"{path}: {key} is {value!r}; it must be a positive integer")
    return chip
