"""Stage shared-binary: the decoders of all buckets as one HTP context binary, which the SDK bundle ships."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.compile.shared import compile_shared
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/shared and reports/shared_binary.json."""
    models = {frames: places.decoder(places.QUANTIZED, frames) for frames in cfg.buckets}
    spec = Spec(cfg.quantize.precision, Target(**plain(cfg.target)), CompileSettings(**cfg.compile))
    report = compile_shared(models, spec, places.SHARED)
    write_report(places.REPORTS / "shared_binary.json", report, spec.precision, report["backend"])
    print(f"{report['compiled_buckets']} of {report['buckets']} buckets, {report['binary_bytes'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
