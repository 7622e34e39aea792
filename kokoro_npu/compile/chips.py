"""The table of chips: one YAML file a chip, with the source of its numbers."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from kokoro_npu.errors import KokoroNpuError


def read_chips(directory: Path | str, names: Sequence[str]) -> list[dict[str, Any]]:
    """What ``<directory>/<name>.yaml`` says of each chip: the fields of :class:`kokoro_npu.compile.options.Target`.

    Raises:
        KokoroNpuError: a chip is not in the table; the message names the nearest ones.
    """
    files = {path.stem: path for path in sorted(Path(directory).glob("*.yaml"))}
    for name in names:
        if name not in files:
            near = difflib.get_close_matches(name, list(files), n=2, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(files)};"
            raise KokoroNpuError(
                f"{name!r} is not in the table of chips; {hint} a new chip is a new file in {directory}"
            )
    return [yaml.safe_load(files[name].read_text(encoding="utf-8")) for name in names]
