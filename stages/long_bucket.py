"""Stage long-bucket@<frames>: the HTP context binary of a bucket that takes the compiler too long for every build."""

from pathlib import Path

from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.compile import CompileSettings, Target, compile_decoder
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_json
from kokoro_npu.report import metrics_row
from kokoro_npu.weights import source_label


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/long/<frames> and reports/long/<frames>.json."""
    if cfg.compile.backend != "local":
        raise KokoroNpuError("pipelines/long is for this machine's compiler; AI Hub compiles every bucket in the build")
    if cfg.frames not in cfg.buckets:
        built = ", ".join(map(str, cfg.buckets))
        raise KokoroNpuError(f"long.frames: no bucket of {cfg.frames} frames is built, only {built}: set bucket.frames")
    report = compile_decoder(
        Path("artifacts/quantized") / f"kokoro_decoder_{cfg.frames}.onnx",
        cfg.frames,
        cfg.quantize.precision,
        Target(**plain(cfg.target)),
        CompileSettings(**(plain(cfg.compile) | {"long_buckets": True})),
        Path("artifacts/long") / str(cfg.frames),
    )
    weights = {"weights_source": source_label("artifacts/weights")}
    write_json(f"reports/long/{cfg.frames}.json", metrics_row(report) | weights)
    print(f"{cfg.frames} frames: " + ("compiled" if report["compiled"] else f"not compiled: {report['reason']}"))


if __name__ == "__main__":
    main()
