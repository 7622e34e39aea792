"""Stage chips@<chip>: the decoders of all buckets as one HTP context binary for one more chip."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report
from kokoro_npu.compile.chips import read_chip
from kokoro_npu.compile.options import CompileSettings, Spec
from kokoro_npu.compile.shared import compile_shared
from kokoro_npu.errors import KokoroNpuError
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/chips/<chip> and reports/chips/<chip>.json."""
    if cfg.compile.backend != "local":
        raise KokoroNpuError("pipelines/chips compiles on this machine; AI Hub takes several devices in target.device")
    models = {frames: places.decoder(places.QUANTIZED, frames) for frames in cfg.buckets}
    spec = Spec(cfg.quantize.precision, read_chip(cfg.chip), CompileSettings(**cfg.compile))
    report = compile_shared(models, spec, places.CHIPS / cfg.chip)
    write_report(places.REPORTS / f"chips/{cfg.chip}.json", report, spec.precision, report["backend"])
    size = f"{report['binary_bytes'] / 1e6:.1f} MB"
    print(f"{cfg.chip}: {report['compiled_buckets']} of {report['buckets']} buckets, {size}")


if __name__ == "__main__":
    main()
