"""Text to Kokoro's phonemes, offline, with misaki's eSpeak front end."""

from functools import lru_cache
from typing import Any

_SYLLABIC = "\u0329"
"""eSpeak marks syllabic consonants with it; Kokoro's alphabet does not know the mark."""


def phonemize(text: str, language: str = "en-us") -> str:
    """Phonemes of a text in an eSpeak language."""
    phonemes: str = _front_end(language)(text)[0]
    return phonemes.replace(_SYLLABIC, "")


@lru_cache(maxsize=2)
def _front_end(language: str) -> Any:
    # Imported here: it loads eSpeak, which only texts need.
    from misaki.espeak import EspeakG2P

    return EspeakG2P(language=language)
