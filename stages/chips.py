"""Stage chips@<chip>: the decoders of all buckets as one HTP context binary for one more chip."""

from pathlib import Path
from typing import Any

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.chips import read_chips
from kokoro_npu.compile import CompileSettings, Target, compile_decoders
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_json
from kokoro_npu.weights import source_label

ONCE = ("backend", "precision", "target", "soc_model", "htp_arch", "optimization_level", "qairt", "onnxruntime_qnn")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/chips/<chip> and reports/chips/<chip>.json."""
    if cfg.compile.backend != "local":
        raise KokoroNpuError("pipelines/chips compiles on this machine; AI Hub takes several devices in target.device")
    (chip,) = read_chips("conf/target", [cfg.chip])
    reports = compile_decoders(
        {frames: Path("artifacts/quantized") / f"kokoro_decoder_{frames}.onnx" for frames in cfg.buckets},
        cfg.quantize.precision,
        Target(**chip),
        CompileSettings(**cfg.compile),
        f"artifacts/chips/{cfg.chip}",
    )
    compiled = [report for report in reports.values() if report["compiled"]]
    summary: dict[str, Any] = {key: next(iter(reports.values()))[key] for key in ONCE}
    summary |= {
        "chip": chip["chip"],
        "buckets": len(reports),
        "compiled_buckets": len(compiled),
        "frames": [report["frames"] for report in compiled],
        "binary_bytes": max((report["binary_bytes"] for report in compiled), default=0),
        "seconds": round(sum(report["seconds"] for report in compiled), 1),
        "peak_rss_bytes": max((report["peak_rss_bytes"] for report in compiled), default=0),
        "reasons": "; ".join(f"{frames} frames: {r['reason']}" for frames, r in reports.items() if r["reason"]),
        "weights_source": source_label("artifacts/weights"),
    }
    write_json(f"reports/chips/{cfg.chip}.json", summary)
    print(f"{cfg.chip}: {len(compiled)} of {len(reports)} buckets, {summary['binary_bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
