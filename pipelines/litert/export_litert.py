"""Stage export-litert@<frames>: the decoder of one bucket for LiteRT, float32 and int8 weights, judged and timed."""

from omegaconf import DictConfig

from kokoro_npu.runtimes.compare import export_decoder
from kokoro_npu.runtimes.litert import RUNTIME
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write the .tflite files and the table in artifacts/litert, and reports/runtimes/litert/<frames>.json."""
    export_decoder(RUNTIME, cfg.frames, plain(cfg.runtimes))


if __name__ == "__main__":
    main()
