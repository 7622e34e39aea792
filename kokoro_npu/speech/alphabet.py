"""Kokoro's phoneme alphabet: which symbols it has, and what somebody who wrote another one probably meant."""

import unicodedata
from collections.abc import Collection

from kokoro_npu.errors import KokoroNpuError

LOOKALIKES = {
    "g": "ɡ",  # the letter of the keyboard for U+0261
    "'": "ˈ",
    "’": "ˈ",
    "ǝ": "ə",
    "ε": "ɛ",
    "ɩ": "ɪ",
    "ɫ": "l",
    "ɬ": "l",
    "ɝ": "ɜɹ",
    "ɱ": "m",
    "ʍ": "w",
    "ʐ": "ʒ",
    "ħ": "h",
    "ɦ": "h",
    "ɭ": "l",
    "ʀ": "ʁ",
    "ɵ": "ʊ",
    "ʏ": "ʊ",
    "ɘ": "ə",
    "ɞ": "ɜ",
    "–": "—",
    "-": "—",
}
"""Symbols outside the alphabet, and the nearest sound inside: as typed by mistake, or as eSpeak writes them."""

_TIES = "\u0361\u035c^"
_AFFRICATES = {"tʃ": "ʧ", "dʒ": "ʤ", "ts": "ʦ", "dz": "ʣ", "tɕ": "ʨ", "dʑ": "ʥ"}


def check_phonemes(phonemes: str, alphabet: Collection[str], where: str) -> None:
    """Require that every symbol is in the alphabet.

    Raises:
        KokoroNpuError: names the first symbol that is not, its place, and what it may stand for; or there is none.
    """
    if not phonemes.strip():
        raise KokoroNpuError(f"{where}: there is nothing to say")
    for place, symbol in enumerate(phonemes):
        if symbol not in alphabet:
            near = suggestions(phonemes, place, alphabet)
            hint = f"did you mean {' or '.join(near)}?" if near else "see docs/say.md for the alphabet"
            raise KokoroNpuError(
                f"{where}: {symbol!r} (U+{ord(symbol):04X}), symbol {place + 1} of {len(phonemes)}, is not in Kokoro's "
                f"phoneme alphabet; {hint}"
            )


def suggestions(phonemes: str, place: int, alphabet: Collection[str]) -> list[str]:
    """Symbols of the alphabet that the symbol at ``place`` may stand for, the likeliest first."""
    symbol = phonemes[place]
    # t͡ʃ is one symbol here.
    tied = _AFFRICATES.get(phonemes[max(0, place - 1) : place] + phonemes[place + 1 : place + 2], "")
    found = [tied if symbol in _TIES else "", LOOKALIKES.get(symbol, "")]
    found += [unicodedata.normalize("NFD", symbol)[0], symbol.lower(), symbol.upper()]
    return [item for item in dict.fromkeys(found) if item and all(part in alphabet for part in item)]


def spell(phonemes: str, alphabet: Collection[str]) -> str:
    """Phonemes of a front end in the alphabet: near sounds for unknown letters, without unknown marks and signs.

    An unknown letter that has no near sound stays, for `check_phonemes` to name. Upstream drops whatever it does not
    know; a dropped letter is a mispronounced word.
    """
    kept = []
    for symbol in phonemes:
        near = LOOKALIKES.get(symbol, symbol)
        if symbol in alphabet:
            kept.append(symbol)
        elif all(part in alphabet for part in near):
            kept.append(near)
        elif symbol.isalpha():
            kept.append(symbol)
    return " ".join("".join(kept).split())
