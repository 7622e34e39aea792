"""Stage speech-eval: the runtime against PyTorch on sentences of its own, and how soon it sounds; gated."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.files import atomic, write_json
from kokoro_npu.speech.evaluation import check_gate, evaluate, load_sentences
from kokoro_npu.speech.models import PRECISIONS, models_of_build
from kokoro_npu.speech.phonemizer import Phonemizer
from kokoro_npu.speech.synthesizer import Synthesizer
from kokoro_npu.versions import provenance
from kokoro_npu.weights.canonical import source_label
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage

ARTIFACTS = Path("artifacts")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/speech/sentences.csv and reports/speech.json, then apply the gate."""
    model = load_kmodel(ARTIFACTS / "weights")
    synthesizers = {name: Synthesizer(models_of_build(ARTIFACTS, name, list(cfg.buckets))) for name in PRECISIONS}
    # Without misaki's tagger even where it is installed: the report must not depend on the machine.
    to_phonemes = Phonemizer(model.vocab, tagger=False)
    sentences = load_sentences(cfg.speech.sentences)
    table, report = evaluate(
        model, synthesizers, to_phonemes, sentences, cfg.speech.timed_text, cfg.seed, cfg.speech.runs
    )
    with atomic(ARTIFACTS / "speech/sentences.csv") as tmp:
        table.to_csv(tmp, index=False, float_format="%.6g")
    made_by = provenance(source_label(ARTIFACTS / "weights"), cfg.quantize.precision, "onnxruntime-cpu")
    write_json("reports/speech.json", report | made_by)
    check_gate(table, cfg.speech.fp32_snr_db_min)


if __name__ == "__main__":
    main()
