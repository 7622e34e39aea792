"""How a stage reads its configuration and how it fails; the only place beside conf/ that knows Hydra.

A stage runs as ``python -m stages.<name>``, because a queued experiment runs in a copy of the tree: the library of that
copy then comes before the one of the clone that the environment was made in.
"""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kokoro_npu.errors import KokoroNpuError

_CONF = Path(__file__).resolve().parents[1] / "conf"
sys.path.append(str(_CONF))  # where Hydra, too, finds its plugins
from hydra_plugins import plan  # noqa: E402  # needs the path above


def stage(main: Callable[[DictConfig], None]) -> Callable[[], None]:
    """Make ``main(cfg)`` the entry point of a stage.

    ``cfg`` holds params.yaml of the working directory, checked (conf/hydra_plugins/plan.py) and read-only,
    and ``frames`` where the command line gives it (``python -m stages.x frames=120``). A `KokoroNpuError`,
    or a key that the plan does not hold, ends the process with one line and exit code 1; any other exception
    is a defect and keeps its traceback.
    """

    @wraps(main)
    def run(cfg: DictConfig) -> None:
        try:
            params: Any = OmegaConf.to_container(cfg)
            if (frames := params.pop("frames")) != "???":
                plan.check_frames(frames)
            params.pop("chip")
            plan.check(params)
            OmegaConf.set_readonly(cfg, True)
            main(cfg)
        except (KokoroNpuError, OmegaConfBaseException) as error:
            sys.exit(f"error: {plan.one_line(error)}")

    entry: Callable[[], None] = hydra.main(str(_CONF), "stage", version_base="1.3")(run)
    return entry


def plain(section: DictConfig) -> dict[str, Any]:
    """A section of the configuration as plain dicts and lists, the form that the library takes."""
    values: Any = OmegaConf.to_container(section, resolve=True)
    return {str(key): value for key, value in values.items()}
