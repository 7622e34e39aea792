"""Stage long-bucket@<frames>: the HTP context binary of a bucket that takes the compiler too long for every build."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import metrics_row, write_report
from kokoro_npu.compile.local import compile_decoder
from kokoro_npu.compile.memory import LONG_FRAMES
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.compile.report import not_compiled, prepare, say_why
from kokoro_npu.compile.toolchain import BACKEND
from kokoro_npu.errors import KokoroNpuError
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/long/<frames> and reports/long/<frames>.json."""
    if cfg.compile.backend != "local":
        raise KokoroNpuError("pipelines/long is for this machine's compiler; AI Hub compiles every bucket in the build")
    settings = CompileSettings(**(plain(cfg.compile) | {"long_buckets": True}))
    spec = Spec(cfg.quantize.precision, Target(**plain(cfg.target)), settings)
    model, out_dir = places.decoder(places.QUANTIZED, cfg.frames), places.LONG / str(cfg.frames)
    if cfg.frames > LONG_FRAMES:
        report = compile_decoder(model, cfg.frames, spec, out_dir)
    else:
        prepare([model], out_dir)
        reason = f"in the build: {places.COMPILED / str(cfg.frames)} holds buckets of up to {LONG_FRAMES} frames"
        report = not_compiled(BACKEND, cfg.frames, spec, reason)
        say_why(report, out_dir)
    write_report(places.REPORTS / f"long/{cfg.frames}.json", metrics_row(report), spec.precision, BACKEND)
    print(f"{cfg.frames} frames: {report['reason'] or 'compiled'}")


if __name__ == "__main__":
    main()
