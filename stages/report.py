"""Stage report: the reviewer's page, its short form for pull requests, and the charts that `dvc plots` shows."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.page.page import write_page
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/index.html, reports/index.md and reports/plots/."""
    write_page(
        places.REPORTS,
        frames=list(cfg.buckets),
        precision=cfg.quantize.precision,
        gates={**cfg.parity.gates, **cfg.quantize.gates},
        audit_dir=places.AUDIT,
        compiled_dir=places.COMPILED,
        parity_dir=places.PARITY,
        revision=cfg.report.baseline,
    )


if __name__ == "__main__":
    main()
