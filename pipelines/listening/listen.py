"""Stage listen: word error rate of every variant by an offline recogniser, with controls that must fail."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build.labels import FP32, QUANTIZED
from kokoro_npu.corpus.utterances import EVALUATION, load_corpus
from kokoro_npu.evaluate.word_errors import check_gates, clips, listen, pocketsphinx_recogniser, summarize
from kokoro_npu.files import atomic, write_json
from kokoro_npu.versions import flat_versions, provenance
from kokoro_npu.weights.canonical import source_label
from pipelines.listening._listening import SPOKEN, further_precisions
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/listening/words.csv and reports/listening.json, then apply the gates."""
    corpus = load_corpus(cfg.corpus)
    texts = {utterance.id: utterance.text for utterance in corpus if utterance.part == EVALUATION}
    recogniser = pocketsphinx_recogniser(utterance.text for utterance in corpus)
    further = dict.fromkeys(further_precisions(cfg), SPOKEN)
    heard = clips(Path("artifacts/parity"), list(cfg.buckets), texts, cfg.seed, further)
    table = listen(heard, recogniser, cfg.listening.phases)
    with atomic("artifacts/listening/words.csv") as tmp:
        table.to_csv(tmp, index=False)
    report = summarize(table)
    made_by = provenance(source_label("artifacts/weights"), cfg.quantize.precision, "onnxruntime-cpu")
    made_by |= flat_versions(["pocketsphinx"])
    write_json("reports/listening.json", {"buckets": len(cfg.buckets), **report, **made_by})
    check_gates(report, [FP32, QUANTIZED], cfg.listening.points_max, cfg.listening.control_points_min)


if __name__ == "__main__":
    main()
