"""Stage fetch-weights: the canonical weight files from the source that ``weights`` names."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.weights import sources
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/weights; downloads stay in artifacts/downloads, which is no output of the plan."""
    sources.fetch(plain(cfg.weights), places.WEIGHTS, places.DOWNLOADS)


if __name__ == "__main__":
    main()
