"""Fill in the phonemes of data/corpus.yaml from its texts, offline, with misaki's eSpeak front end.

Run it after a text was added or changed: ``python tools/phonemize.py``; it takes the alphabet from artifacts/weights.
The phonemes are committed, so that no build depends on a front end.
"""

from pathlib import Path

import yaml

from kokoro_npu.build import places
from kokoro_npu.speech.phonemizer import Phonemizer
from kokoro_npu.weights.canonical import load_config

HEADER = """\
# The corpus: what calibrates and what judges. `phonemes` are made from `text` by tools/phonemize.py.
# calibration: sets the ranges of the quantized decoder. evaluation: is measured and gated. They share no utterance.
"""


def main() -> None:
    """Rewrite the corpus in place."""
    path = Path("data/corpus.yaml")
    corpus = yaml.safe_load(path.read_text(encoding="utf-8"))
    # Without a tagger, which is not everywhere, so that everybody gets the same phonemes.
    phonemize = Phonemizer(load_config(places.WEIGHTS)["vocab"], tagger=False)
    for utterance in corpus["utterances"]:
        utterance["phonemes"] = phonemize(utterance["text"])
    body = yaml.safe_dump(corpus, allow_unicode=True, sort_keys=False, width=110)
    path.write_text(HEADER + body, encoding="utf-8")


if __name__ == "__main__":
    main()
