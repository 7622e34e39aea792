"""Stage report: the reviewer's page, its short form for pull requests, and the charts that `dvc plots` shows."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.page.page import write_page
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/index.html, reports/index.md and reports/plots/."""
    gates = {**cfg.parity.gates, **cfg.quantize.gates}
    write_page(Path(), cfg.buckets, cfg.quantize.precision, gates, cfg.parity.fill_min, cfg.report.baseline)


if __name__ == "__main__":
    main()
