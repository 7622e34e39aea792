"""What the stages speak-precisions and listen share: which further precisions are heard, and where they lie."""

from pathlib import Path

from omegaconf import DictConfig

SPOKEN = Path("artifacts/precisions")


def further_precisions(cfg: DictConfig) -> list[str]:
    """Presets of conf/quantize that are heard beside the build's own precision, which parity-eval speaks."""
    return [name for name in cfg.listening.precisions if name != cfg.quantize.precision]
