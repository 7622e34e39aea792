"""Stage reference-set: decoder features and reference audio of the corpus."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report
from kokoro_npu.corpus.recording import record
from kokoro_npu.corpus.utterances import load_corpus
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.weights.canonical import load_voices
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/reference_set and reports/reference_set.json."""
    report = record(
        load_corpus(cfg.corpus),
        load_kmodel(places.WEIGHTS),
        load_voices(places.WEIGHTS),
        Frontend(places.CPU / places.DURATION_MODEL, places.CPU / places.PROSODY_MODEL),
        places.REFERENCE_SET,
        cfg.seed,
    )
    write_report(places.REPORTS / "reference_set.json", report, "fp32", "onnxruntime-cpu")


if __name__ == "__main__":
    main()
