"""Stage op-audit@<frames>: what the decoder is made of, and what of it the NPU takes."""

from pathlib import Path

from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.audit import audit_decoder
from kokoro_npu.compile import CompileSettings, Target
from kokoro_npu.files import write_json
from kokoro_npu.report import metrics_row
from kokoro_npu.weights import source_label


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/audit/<frames> and reports/audit/<frames>.json."""
    name = f"kokoro_decoder_{cfg.frames}.onnx"
    report = audit_decoder(
        Path("artifacts/decoder") / name,
        Path("artifacts/quantized") / name,
        cfg.frames,
        cfg.quantize.precision,
        Target(**plain(cfg.target)),
        CompileSettings(**cfg.compile),
        Path("artifacts/audit") / str(cfg.frames),
        cfg.audit.op_table,
    )
    weights = {"weights_source": source_label("artifacts/weights")}
    write_json(f"reports/audit/{cfg.frames}.json", metrics_row(report) | weights)
    if report["placed"]:
        print(f"{cfg.frames} frames: {report['nodes_on_npu']} of {report['nodes']} nodes on the NPU")
    else:
        print(f"{cfg.frames} frames: placement not known: {report['reason']}")


if __name__ == "__main__":
    main()
