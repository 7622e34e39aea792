"""Stage qai-compile@<frames>: the decoder as an HTP context binary, or why there is none."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.compile.options import CompileSettings
from stages._bucket import compile_bucket
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/compiled/<frames> and reports/compile/<frames>.json."""
    settings = CompileSettings(**cfg.compile, aihub=plain(cfg.aihub))
    compile_bucket(cfg, settings, places.COMPILED, places.REPORTS / "compile")


if __name__ == "__main__":
    main()
