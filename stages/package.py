"""Stage package: the SDK bundle, with a manifest that vouches for every byte."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.compile.options import Target
from kokoro_npu.sdk.bundle import open_bundle
from kokoro_npu.sdk.package import Build, write_bundle
from stages._config import plain, stage

LICENCES = [Path("LICENSE"), Path("NOTICE")]


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/sdk, and open it as an application would."""
    target = Target(**plain(cfg.target))
    build = Build(places.ARTIFACTS, places.REPORTS, list(cfg.buckets), cfg.quantize.precision, target)
    write_bundle(build, list(cfg.package.precisions), LICENCES, places.BUNDLE)
    print(f"{places.BUNDLE}: {len(open_bundle(places.BUNDLE).manifest['files'])} files")


if __name__ == "__main__":
    main()
