"""Stage op-numerics@<frames>: the ops of one bucket in the HTP emulation; those of the small bucket are known."""

from pathlib import Path

from omegaconf import DictConfig

from pipelines.emulation._numerics import audit
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/emulation/op_numerics/<frames>.csv and reports/op_numerics/<frames>.json."""
    name = f"kokoro_decoder_{cfg.frames}.onnx"
    table = Path(f"artifacts/emulation/op_numerics/{cfg.frames}.csv")
    report = Path(f"reports/op_numerics/{cfg.frames}.json")
    audit(cfg, cfg.frames, Path("artifacts/decoder") / name, Path("artifacts/quantized") / name, table, report)


if __name__ == "__main__":
    main()
