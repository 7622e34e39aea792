"""Stage listen: word error rate of every variant by an offline recogniser, with controls that must fail."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.labels import FP32, QUANTIZED
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.corpus.reference_set import EVALUATION
from kokoro_npu.corpus.utterances import load_corpus
from kokoro_npu.evaluate.word_errors import check_gates, clips, listen, pocketsphinx_recogniser, summarize
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/listening/words.csv and reports/listening.json, then apply the gates."""
    corpus = load_corpus(cfg.corpus)
    texts = {utterance.id: utterance.text for utterance in corpus if utterance.part == EVALUATION}
    recogniser = pocketsphinx_recogniser(utterance.text for utterance in corpus)
    further = dict.fromkeys(cfg.listening.precisions, places.PRECISIONS)
    table = listen(clips(places.PARITY, cfg.buckets, texts, cfg.seed, further), recogniser, cfg.listening.phases)
    write_table(places.LISTENING / "words.csv", table)
    report = {"buckets": len(cfg.buckets), **summarize(table)}
    precision = cfg.quantize.precision
    write_report(places.REPORTS / "listening.json", report, precision, "onnxruntime-cpu", ["pocketsphinx"])
    check_gates(report, [FP32, QUANTIZED], cfg.listening.points_max, cfg.listening.control_points_min)


if __name__ == "__main__":
    main()
