"""Stage shared-binary: the decoders of all buckets as one HTP context binary, which the SDK bundle ships."""

from pathlib import Path

from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.compile import CompileSettings, Spec, Target
from kokoro_npu.files import write_json
from kokoro_npu.shared_binary import compile_shared
from kokoro_npu.weights import source_label


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/shared and reports/shared_binary.json."""
    report = compile_shared(
        {frames: Path("artifacts/quantized") / f"kokoro_decoder_{frames}.onnx" for frames in cfg.buckets},
        Spec(cfg.quantize.precision, Target(**plain(cfg.target)), CompileSettings(**cfg.compile)),
        "artifacts/shared",
    )
    write_json("reports/shared_binary.json", report | {"weights_source": source_label("artifacts/weights")})
    print(f"{report['compiled_buckets']} of {report['buckets']} buckets, {report['binary_bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
