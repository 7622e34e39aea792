"""Fill in the phonemes of data/corpus.yaml from its texts, offline, with misaki's eSpeak front end.

Run it after a text was added or changed: ``python tools/phonemize.py``. The phonemes are committed, so that no build
depends on a front end.
"""

import sys
from pathlib import Path

import yaml
from misaki.espeak import EspeakG2P

HEADER = """\
# The corpus: what calibrates and what judges. `phonemes` are made from `text` by tools/phonemize.py.
# calibration: sets the ranges of the quantized decoder. evaluation: is measured and gated. They share no utterance.
"""


def main() -> None:
    """Rewrite the corpus in place."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "data/corpus.yaml")
    corpus = yaml.safe_load(path.read_text(encoding="utf-8"))
    to_phonemes = EspeakG2P(language="en-us")
    for utterance in corpus["utterances"]:
        phonemes = to_phonemes(utterance["text"])[0]
        # eSpeak marks syllabic consonants (U+0329), which Kokoro's alphabet does not know.
        utterance["phonemes"] = phonemes.replace("\u0329", "")
    body = yaml.safe_dump(corpus, allow_unicode=True, sort_keys=False, width=110)
    path.write_text(HEADER + body, encoding="utf-8")


if __name__ == "__main__":
    main()
