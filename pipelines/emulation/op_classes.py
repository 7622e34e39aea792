"""Stage op-classes: each distinct op of the small bucket's decoder alone through the HTP emulation."""

from pathlib import Path

from omegaconf import DictConfig

from pipelines.emulation._numerics import audit
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/emulation/classes.csv and reports/op_numerics/classes.json."""
    decoder, table = Path("artifacts/emulation/decoder"), Path("artifacts/emulation/classes.csv")
    report = Path("reports/op_numerics/classes.json")
    audit(cfg, cfg.htp_parity.frames, decoder / "float.onnx", decoder / "quantized.onnx", table, report)


if __name__ == "__main__":
    main()
