"""Stage long-bucket@<frames>: the HTP context binary of a bucket that takes the compiler too long for every build."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.compile.options import CompileSettings
from kokoro_npu.errors import KokoroNpuError
from stages._bucket import compile_bucket
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/long/<frames> and reports/long/<frames>.json."""
    if cfg.compile.backend != "local":
        raise KokoroNpuError("pipelines/long is for this machine's compiler; AI Hub compiles every bucket in the build")
    if cfg.frames not in cfg.buckets:
        built = ", ".join(map(str, cfg.buckets))
        raise KokoroNpuError(f"long.frames: no bucket of {cfg.frames} frames is built, only {built}: set bucket.frames")
    settings = CompileSettings(**(plain(cfg.compile) | {"long_buckets": True}))
    compile_bucket(cfg, settings, Path("artifacts/long"), Path("reports/long"))


if __name__ == "__main__":
    main()
