"""Stage variants: the whole model in seed 3's precisions, beside the public int8 monolith, by one measure."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import load_reference_set
from kokoro_npu.files import atomic, write_json
from kokoro_npu.variants.comparison import Settings, compare
from kokoro_npu.variants.conversion import Source
from kokoro_npu.versions import provenance
from kokoro_npu.weights.canonical import source_label
from stages._config import stage

WEIGHTS = Path("artifacts/weights")
SOURCE = Source(Path("artifacts/cpu"), Path("artifacts/decoder"), Path("artifacts/quantized"))
MONOLITH = Path("artifacts/downloads/kokoro-int8.onnx")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/variants/, artifacts/variants/utterances.csv and reports/variants.{csv,json}."""
    out = Path("artifacts/variants")
    recorded = {part: list(load_reference_set(places.REFERENCE_SET, part)) for part in ("calibration", "evaluation")}
    settings = Settings(list(cfg.variants.names), list(cfg.variants.frames), cfg.variants.runs, cfg.seed)
    found = compare(SOURCE, MONOLITH, recorded["calibration"], recorded["evaluation"], settings, out)
    for table, path in ((found.utterances, out / "utterances.csv"), (found.table, "reports/variants.csv")):
        with atomic(path) as tmp:
            table.to_csv(tmp, index=False, float_format="%.6g")
    made_by = provenance(source_label(WEIGHTS), cfg.quantize.precision, "onnxruntime-cpu")
    write_json("reports/variants.json", found.summary | made_by)


if __name__ == "__main__":
    main()
