"""Stage qai-compile@<frames>: the decoder as an HTP context binary, or why there is none."""

from pathlib import Path

from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.compile import CompileSettings, Target, compile_decoder
from kokoro_npu.files import write_json
from kokoro_npu.report import metrics_row
from kokoro_npu.weights import source_label


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/compiled/<frames> and reports/compile/<frames>.json."""
    report = compile_decoder(
        Path("artifacts/quantized") / f"kokoro_decoder_{cfg.frames}.onnx",
        cfg.frames,
        cfg.quantize.precision,
        Target(**plain(cfg.target)),
        CompileSettings(**cfg.compile, aihub=plain(cfg.aihub)),
        Path("artifacts/compiled") / str(cfg.frames),
    )
    weights = {"weights_source": source_label("artifacts/weights")}
    write_json(f"reports/compile/{cfg.frames}.json", metrics_row(report) | weights)
    print(f"{cfg.frames} frames: " + ("compiled" if report["compiled"] else f"not compiled: {report['reason']}"))


if __name__ == "__main__":
    main()
