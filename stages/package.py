"""Stage package: the SDK bundle, with a manifest that vouches for every byte."""

from pathlib import Path

from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.compile.options import Target
from kokoro_npu.sdk.bundle import open_bundle
from kokoro_npu.sdk.package import Build, write_bundle

LICENCES = [Path("LICENSE"), Path("NOTICE")]


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/sdk, and open it as an application would."""
    target = Target(**plain(cfg.target))
    build = Build(Path("artifacts"), Path("reports"), list(cfg.buckets), cfg.quantize.precision, target)
    out = Path("artifacts/sdk")
    manifest = write_bundle(build, list(cfg.package.precisions), LICENCES, out)
    open_bundle(out)
    size = sum(file["bytes"] for file in manifest["files"].values())
    print(f"{out}: {len(manifest['files'])} files, {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
