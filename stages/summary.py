"""Stage summary: the worst figure of each kind over the buckets, as one committed metrics file."""

from pathlib import Path

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.files import write_json
from kokoro_npu.report import summarize
from kokoro_npu.weights import source_label

REPORTS = Path("reports")


@stage
def main(cfg: DictConfig) -> None:
    weights = source_label("artifacts/weights")
    write_json(REPORTS / "summary.json", summarize(REPORTS, list(cfg.buckets), cfg.quantize.precision, weights))


if __name__ == "__main__":
    main()
