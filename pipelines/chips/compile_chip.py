"""Stage chips@<chip>: the decoders of all buckets as one HTP context binary for one more chip."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.compile.chips import read_chips
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.compile.shared import compile_shared
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_json
from kokoro_npu.weights.canonical import source_label
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/chips/<chip> and reports/chips/<chip>.json."""
    if cfg.compile.backend != "local":
        raise KokoroNpuError("pipelines/chips compiles on this machine; AI Hub takes several devices in target.device")
    (chip,) = read_chips("conf/target", [cfg.chip])
    report = compile_shared(
        {frames: Path("artifacts/quantized") / f"kokoro_decoder_{frames}.onnx" for frames in cfg.buckets},
        Spec(cfg.quantize.precision, Target(**chip), CompileSettings(**cfg.compile)),
        f"artifacts/chips/{cfg.chip}",
    )
    write_json(f"reports/chips/{cfg.chip}.json", report | {"weights_source": source_label("artifacts/weights")})
    size = f"{report['binary_bytes'] / 1e6:.1f} MB"
    print(f"{cfg.chip}: {report['compiled_buckets']} of {report['buckets']} buckets, {size}")


if __name__ == "__main__":
    main()
