"""Stage export-litert-w8a16: the smallest bucket's decoder for LiteRT with integer convolutions, judged and timed."""

from omegaconf import DictConfig

from kokoro_npu.runtimes.compare import export_decoder
from kokoro_npu.runtimes.litert import W8A16
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write the .tflite file and the table in artifacts/litert, and reports/runtimes/litert/w8a16.json."""
    export_decoder(W8A16, cfg.frames, plain(cfg.runtimes))


if __name__ == "__main__":
    main()
