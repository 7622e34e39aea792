"""Stage report: the reviewer's page, its short form for pull requests, and the charts that `dvc plots` shows."""

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.page import write_page


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/index.html, reports/index.md and reports/plots/."""
    write_page(
        "reports",
        frames=list(cfg.buckets),
        precision=cfg.quantize.precision,
        gates={**cfg.parity.gates, **cfg.quantize.gates},
        audit_dir="artifacts/audit",
        compiled_dir="artifacts/compiled",
        parity_dir="artifacts/parity",
        revision=cfg.report.baseline,
    )


if __name__ == "__main__":
    main()
