"""Stage runtimes: one table over the runtimes, buckets and precisions."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.files import atomic
from kokoro_npu.runtimes.shown import markdown
from kokoro_npu.runtimes.table import collect, summarize
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/runtimes.csv, .md and .json."""
    table = collect(places.RUNTIMES, places.REPORTS / "parity", list(cfg.buckets))
    write_table(places.RUNTIMES.with_suffix(".csv"), table)
    with atomic(places.RUNTIMES.with_suffix(".md")) as tmp:
        tmp.write_text(markdown(table), encoding="utf-8")
    precisions = "+".join(sorted(set(table["precision"])))
    write_report(places.RUNTIMES.with_suffix(".json"), summarize(table), precisions, "each row's runtime, on this CPU")


if __name__ == "__main__":
    main()
