"""Stage shared-binary: the decoders of all buckets as one HTP context binary, which the SDK bundle ships."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.compile.shared import compile_shared
from kokoro_npu.files import write_json
from kokoro_npu.weights.canonical import source_label
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/shared and reports/shared_binary.json."""
    report = compile_shared(
        {frames: places.decoder(places.QUANTIZED, frames) for frames in cfg.buckets},
        Spec(cfg.quantize.precision, Target(**plain(cfg.target)), CompileSettings(**cfg.compile)),
        places.SHARED,
    )
    write_json(places.REPORTS / "shared_binary.json", report | {"weights_source": source_label(places.WEIGHTS)})
    print(f"{report['compiled_buckets']} of {report['buckets']} buckets, {report['binary_bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
