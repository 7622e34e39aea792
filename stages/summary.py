"""Stage summary: the worst figure of each kind over the buckets, as one committed metrics file."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.evaluate.summary import summarize
from kokoro_npu.files import write_json
from kokoro_npu.weights.canonical import source_label
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    weights = source_label(places.WEIGHTS)
    summary = summarize(places.REPORTS, list(cfg.buckets), cfg.quantize.precision, weights)
    write_json(places.REPORTS / "summary.json", summary)


if __name__ == "__main__":
    main()
