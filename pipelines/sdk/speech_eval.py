"""Stage speech-eval: the runtime against PyTorch on sentences of its own, and how soon it sounds; gated."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.labels import FP32
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.speech.evaluation import against_pytorch, check_gate, summary
from kokoro_npu.speech.models import DIRECTORIES, models_of_build
from kokoro_npu.speech.phonemizer import Phonemizer
from kokoro_npu.speech.synthesizer import Synthesizer
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/speech/sentences.csv and reports/speech.json, then apply the gate."""
    model = load_kmodel(places.WEIGHTS)
    synthesizers = {
        name: Synthesizer(models_of_build(places.ARTIFACTS, name, list(cfg.buckets))) for name in DIRECTORIES
    }
    # Without misaki's tagger even where it is installed: the report must not depend on the machine.
    to_phonemes = Phonemizer(model.vocab, tagger=False)
    sentences = Path(cfg.speech.sentences).read_text(encoding="utf-8").splitlines()
    table = against_pytorch(model, synthesizers[FP32], to_phonemes, sentences, cfg.seed)
    write_table(places.SPEECH / "sentences.csv", table)
    report = summary(table, synthesizers, to_phonemes, cfg.speech.timed_text, cfg.speech.runs)
    write_report(places.REPORTS / "speech.json", report, cfg.quantize.precision, "onnxruntime-cpu")
    check_gate(table, cfg.speech.fp32_snr_db_min)


if __name__ == "__main__":
    main()
