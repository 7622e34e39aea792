"""Stage export-executorch@<frames>: the float decoder of one bucket for ExecuTorch on XNNPACK, judged and timed."""

from omegaconf import DictConfig

from kokoro_npu.runtimes.compare import export_decoder
from kokoro_npu.runtimes.executorch import RUNTIME
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write the .pte file and the table in artifacts/executorch, and reports/runtimes/executorch/<frames>.json."""
    export_decoder(RUNTIME, cfg.frames, plain(cfg.runtimes))


if __name__ == "__main__":
    main()
