"""Stage variants: the whole model in kokoro-onnx-export's precisions, beside the public int8 monolith."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.corpus.reference_set import CALIBRATION, EVALUATION, load_reference_set
from kokoro_npu.machine import integer_instructions
from kokoro_npu.variants.comparison import compare, short_buckets, summarize
from kokoro_npu.variants.whole_model import SplitModel
from stages._config import stage

REPORT = places.REPORTS / places.VARIANTS.name


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/variants/, artifacts/variants/utterances.csv and reports/variants.{csv,json}."""
    options = cfg.variants
    frames = short_buckets(list(cfg.buckets), options.frames_max)
    utterances, table = compare(
        SplitModel(places.CPU, places.DECODERS, frames),
        places.QUANTIZED,
        places.MONOLITH,
        list(load_reference_set(places.REFERENCE_SET, CALIBRATION)),
        list(load_reference_set(places.REFERENCE_SET, EVALUATION)),
        list(options.names),
        options.runs,
        cfg.seed,
        places.VARIANTS,
    )
    write_table(places.VARIANTS / "utterances.csv", utterances)
    write_table(REPORT.with_suffix(".csv"), table)
    summary = {
        "cpu_instructions": integer_instructions(),
        "evaluation_utterances": utterances["utterance"].nunique(),
        "smallest_bucket_frames": min(frames),
        "timed_runs": options.runs,
        **summarize(table),
    }
    write_report(REPORT.with_suffix(".json"), summary, cfg.quantize.precision, "onnxruntime-cpu")


if __name__ == "__main__":
    main()
