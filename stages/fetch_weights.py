"""Stage fetch-weights: the canonical weight files from the source that ``weights`` names."""

from pathlib import Path

from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.weights import sources

OUT = Path("artifacts/weights")
CACHE = Path("artifacts/downloads")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/weights; downloads stay in artifacts/downloads, which is no output of the plan."""
    sources.fetch(plain(cfg.weights), OUT, CACHE)


if __name__ == "__main__":
    main()
