"""Stage export-coreml@<frames>: the decoder of one bucket as ML programs, judged by what their ops compute."""

from omegaconf import DictConfig

from kokoro_npu.runtimes.compare import export_decoder
from kokoro_npu.runtimes.coreml import RUNTIME
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write both packages and the table in artifacts/coreml, and reports/runtimes/coreml/<frames>.json."""
    export_decoder(RUNTIME, cfg.frames, plain(cfg.runtimes) | {"utterances": cfg.runtimes.interpreted})


if __name__ == "__main__":
    main()
