"""Stage qai-compile@<frames>: the decoder as an HTP context binary, or why there is none."""

from pathlib import Path

from _bucket import compile_bucket
from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.compile import CompileSettings


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/compiled/<frames> and reports/compile/<frames>.json."""
    settings = CompileSettings(**cfg.compile, aihub=plain(cfg.aihub))
    compile_bucket(cfg, settings, Path("artifacts/compiled"), Path("reports/compile"))


if __name__ == "__main__":
    main()
