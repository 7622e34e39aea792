"""Stage runtimes: one table over the runtimes, buckets and precisions."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.files import atomic, write_json
from kokoro_npu.runtimes.shown import markdown
from kokoro_npu.runtimes.table import collect, summarize
from kokoro_npu.versions import provenance
from kokoro_npu.weights.canonical import source_label
from stages._config import stage

REPORTS = Path("reports")


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/runtimes.csv, .md and .json."""
    table = collect(REPORTS, list(cfg.buckets))
    with atomic(REPORTS / "runtimes.csv") as tmp:
        table.to_csv(tmp, index=False, float_format="%.6g")
    with atomic(REPORTS / "runtimes.md") as tmp:
        tmp.write_text(markdown(table), encoding="utf-8")
    made_by = provenance(source_label("artifacts/weights"), "fp32+fp16+int8", "each row's runtime, on this CPU")
    write_json(REPORTS / "runtimes.json", summarize(table) | made_by)


if __name__ == "__main__":
    main()
