"""Text to Kokoro's phonemes, offline: misaki's English front end where its tagger is installed, else eSpeak's.

misaki's own front end (dictionaries, and eSpeak for what they lack) needs spaCy's model ``en_core_web_sm``, which is
not on the package index; misaki would download it from the network when it is missing. Without it misaki's eSpeak front
end speaks, whose library comes as a wheel.
"""

import importlib.util
import logging
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator

from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.speech.alphabet import check_phonemes, spell

LANGUAGES = {
    "en-us": "American English",
    "en-gb": "British English",
    "es": "Spanish",
    "fr-fr": "French",
    "hi": "Hindi",
    "it": "Italian",
    "pt-br": "Brazilian Portuguese",
}
"""Languages that upstream speaks and eSpeak phonemizes. Japanese and Mandarin need front ends that are not here."""
_SCRIPTS = {"hi": "DEVANAGARI"}
"""Of languages that are written in another script than Latin, as Unicode's names of letters begin."""
_PHONEMES = "give its phonemes (--phonemes)"

_TAGGER = "en_core_web_sm"

_ABBREVIATIONS = re.compile(r"\b(Dr|Mr|Mrs|Ms|Prof|St|Jr|Sr|vs)\.(?=\s)")
_INITIALS = re.compile(r"\b(?:[A-Za-z]\.){2,}(?=(\s+[A-Z]|\s*$)?)")
_GROUPS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_MONEY = re.compile(r"([$€£])\s?(\d+(?:\.\d+)?)")
_DECIMALS = re.compile(r"(\d+)\.(\d+)")
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds"}
_QUOTES = str.maketrans({"‘": "'", "’": "'", "‚": ",", "–": "—", "―": "—", "\u00ad": "", "\u200b": "", "\ufeff": ""})


class Phonemizer:
    """Text of one language to phonemes.

    Args:
        alphabet: the model's phonemes.
        language: one of `LANGUAGES`.
        tagger: whether to use misaki's English front end; None: if its tagger is installed.

    Raises:
        KokoroNpuError: an unknown language.
    """

    def __init__(self, alphabet: Collection[str], language: str = "en-us", tagger: bool | None = None) -> None:
        if language not in LANGUAGES:
            raise KokoroNpuError(
                f"language {language!r} has no front end here: {_PHONEMES}; {did_you_mean(language, LANGUAGES)}"
            )
        self._alphabet, self._language = alphabet, language
        english = language.startswith("en-")
        # Not asked of spaCy: importing it takes two seconds.
        if english and (importlib.util.find_spec(_TAGGER) is not None if tagger is None else tagger):
            self._convert = _misaki_english(british=language == "en-gb")
        else:
            convert = _misaki_espeak(language)
            self._convert = (lambda text: convert(spoken_forms(text))) if english else convert

    def __call__(self, text: str) -> str:
        """Phonemes of a paragraph, on one line.

        Raises:
            KokoroNpuError: nothing in it can be spoken, it is of another script than the language, or the front end
                gives a sound that Kokoro has not.
        """
        _check_script(text, self._language)
        phonemes = spell(self._convert(" ".join(text.translate(_QUOTES).split())), self._alphabet)
        check_phonemes(phonemes if any(map(str.isalpha, phonemes)) else "", self._alphabet, f"text {_shown(text)}")
        return phonemes


def paragraphs(text: str) -> Iterator[str]:
    """The parts of a text between blank lines that hold a letter or a digit."""
    for part in re.split(r"\n\s*\n", text):
        if any(map(str.isalnum, part)):
            yield part


def spoken_forms(text: str) -> str:
    """English text with those dots and commas written out that are no punctuation.

    misaki's eSpeak front end takes the text apart at every mark, so that 3.14 would become "three. fourteen".
    """
    text = _ABBREVIATIONS.sub(r"\1", text)
    # A last dot before a capital or the end may end the sentence as well: it stays.
    text = _INITIALS.sub(lambda m: m[0].replace(".", "") + ("." if m[1] is not None else ""), text)
    text = _GROUPS.sub("", text)
    text = _MONEY.sub(lambda m: f"{m[2]} {_CURRENCIES[m[1]]}", text)
    return _DECIMALS.sub(lambda m: f"{m[1]} point {' '.join(m[2])}", text)


def _misaki_espeak(language: str) -> Callable[[str], str]:
    from misaki.espeak import EspeakG2P

    front_end = EspeakG2P(language=language)
    logging.getLogger("phonemizer").setLevel(logging.ERROR)  # it warns where eSpeak joins two words, as it should
    return lambda text: front_end(text)[0]


def _misaki_english(british: bool) -> Callable[[str], str]:
    from misaki import en, espeak

    front_end = en.G2P(british=british, fallback=espeak.EspeakFallback(british=british), unk="")
    return lambda text: front_end(text)[0]


def _check_script(text: str, language: str) -> None:
    """Refuse letters of a script that the language is not written in: eSpeak would say what each is called."""
    spoken = {"LATIN", "MODIFIER", _SCRIPTS.get(language)}
    for word in re.findall(r"[^\W\d_]+", unicodedata.normalize("NFKC", text)):
        scripts = {letter: unicodedata.name(letter, "UNKNOWN").partition(" ")[0] for letter in word}
        foreign = [letter for letter in word if scripts[letter] not in spoken]
        if not foreign or [scripts[letter] for letter in foreign] == ["GREEK"]:  # α and µm are read well
            continue
        other = next((name for name, script in _SCRIPTS.items() if script == scripts[foreign[0]]), "")
        raise KokoroNpuError(
            f"text {_shown(text)}: {foreign[0]!r} is a {scripts[foreign[0]]} letter, and {LANGUAGES[language]} is not "
            f"written in those: {f'use --language {other}' if other else _PHONEMES}"
        )


def _shown(text: str) -> str:
    short = " ".join(text.split())
    return repr(short if len(short) <= 40 else f"{short[:39]}…")
