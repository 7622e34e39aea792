"""Stage features: decoder features and reference audio of the corpus."""

from pathlib import Path

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.corpus import load_corpus
from kokoro_npu.features import record
from kokoro_npu.files import write_json
from kokoro_npu.frontend import Frontend
from kokoro_npu.versions import provenance
from kokoro_npu.weights import load_kmodel, load_voices, source_label

WEIGHTS = Path("artifacts/weights")
MODELS = Path("artifacts/cpu")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/features and reports/features.json."""
    report = record(
        load_corpus(cfg.features.corpus),
        load_kmodel(WEIGHTS),
        load_voices(WEIGHTS),
        Frontend(MODELS / "kokoro_duration.onnx", MODELS / "kokoro_prosody.onnx"),
        Path("artifacts/features"),
        cfg.seed,
    )
    write_json("reports/features.json", report | provenance(source_label(WEIGHTS), "fp32", "onnxruntime-cpu"))


if __name__ == "__main__":
    main()
