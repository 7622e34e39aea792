"""Text to phonemes to utterances."""

import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.speech.alphabet import check_phonemes, spell, suggestions
from kokoro_npu.speech.phonemizer import Phonemizer, paragraphs, spoken_forms
from kokoro_npu.speech.utterances import (
    FEWEST_PHONEMES,
    MAX_PHONEMES,
    TARGET_PHONEMES,
    Boundary,
    boundary_at_end,
    cut,
    sentences,
    utterances,
)
from kokoro_npu.weights.canonical import load_config

ALPHABET = frozenset(' !"(),.:;?AIOQSTWYabcdefhijklmnopqrstuvwxyzæçðøŋœɐɑɒɔɕɖəɚɛɜɟɡɣɤɥɨɪɯɰɲɳɴɸɹɻɽɾʁʂʃʈʊʋʌʎʒʔʝ')
ALPHABET |= frozenset("ʣʤʥʦʧʨʰʲˈˌːβθχᵊᵝᵻ—“”…→↓↗↘ꭧ\u0303")


def test_a_known_alphabet_passes() -> None:
    check_phonemes("həlˈO, wˈɜːld! “jˈɛs” — ʤˈʌst…", ALPHABET, "here")


@pytest.mark.parametrize(
    ("phonemes", "message"),
    [
        ("hɛg", r"here: 'g' \(U\+0067\), symbol 3 of 3, is not in Kokoro's phoneme alphabet; did you mean ɡ"),
        ("t͡ʃ", "did you mean ʧ"),
        ("həl'o", "did you mean ˈ"),
        ("ɫo", "did you mean l"),
        ("ã", "did you mean a"),
        ("fɝst", "did you mean ɜɹ"),
        ("中", "see docs/say.md"),
        (" ", "here: there is nothing to say"),
    ],
)
def test_a_foreign_symbol_is_one_line_with_what_is_near(phonemes: str, message: str) -> None:
    with pytest.raises(KokoroNpuError, match=message):
        check_phonemes(phonemes, ALPHABET, "here")


def test_suggestions_are_of_the_alphabet() -> None:
    for symbol in map(chr, range(0x21, 0x100)):
        assert all(set(item) <= ALPHABET for item in suggestions(symbol, 0, ALPHABET)), symbol


def test_spell_takes_near_sounds_and_keeps_what_has_none() -> None:
    assert spell("bˈʌʔn\u0329  ɡ~ɬ", ALPHABET) == "bˈʌʔn ɡl"
    assert spell("aʘb", ALPHABET) == "aʘb"  # a click, which Kokoro has not: check_phonemes names it


# Text.


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Dr. Smith met Mrs. Jones.", "Dr Smith met Mrs Jones."),
        ("Pi is 3.14.", "Pi is 3 point 1 4."),
        ("2,000,000 people, 3 cats", "2000000 people, 3 cats"),
        ("It costs $5, or £2.50.", "It costs 5 dollars, or 2 point 5 0 pounds."),
        ("We met at 5 p.m. sharp.", "We met at 5 pm sharp."),
        ("In the U.S.A. He left.", "In the USA. He left."),
        ("No. I refuse.", "No. I refuse."),
    ],
)
def test_dots_that_are_no_full_stops(text: str, spoken: str) -> None:
    assert spoken_forms(text) == spoken


def test_espeak_speaks_offline() -> None:
    to_phonemes = Phonemizer(ALPHABET, tagger=False)
    assert to_phonemes("Hello world.\nIt costs 2.5!") == "həlˈO wˈɜːld. ɪt kˈɔsts tˈuː pˈYnt fˈIv!"
    assert to_phonemes("don’t – well") == to_phonemes("don't — well")


def test_every_language_gives_symbols_of_the_alphabet() -> None:
    text = {
        "en-us": "A button, and thirty-three “genres”.",
        "en-gb": "The colour of a bath.",
        "es": "¿Qué tal, señor? Jalapeño, guerra, llave.",
        "fr-fr": "Où est l'œuvre d'un garçon?",
        "hi": "नमस्ते दुनिया",
        "it": "Gli gnocchi sono buoni, perché?",
        "pt-br": "Não, coração, lhe dou um ninho.",
    }
    spoken = {language: Phonemizer(ALPHABET, language, tagger=False)(line) for language, line in text.items()}
    assert len(set(spoken.values())) == len(text)


@pytest.mark.parametrize("text", ["", " ", "...", "?!"])
def test_nothing_to_say_is_one_line(text: str) -> None:
    with pytest.raises(KokoroNpuError, match="there is nothing to say"):
        Phonemizer(ALPHABET, tagger=False)(text)


def test_an_unknown_language_is_one_line() -> None:
    with pytest.raises(KokoroNpuError, match=r"'ja' has no front end here: give its phonemes .*known: en-gb, "):
        Phonemizer(ALPHABET, "ja")


@pytest.mark.parametrize(
    ("text", "language", "message"),
    [
        (
            "こんにちは",
            "en-us",
            r"text 'こんにちは': 'こ' is a HIRAGANA letter, and American English is not .*--phonemes",
        ),
        ("I love 東京.", "en-gb", "'東' is a CJK letter"),
        ("The word ｶﾀｶﾅ", "es", "'カ' is a KATAKANA letter, and Spanish is not"),
        ("привет", "hi", "'п' is a CYRILLIC letter, and Hindi is not"),
        ("καλημέρα", "it", "'κ' is a GREEK letter"),
        ("नमस्ते", "en-us", "DEVANAGARI letter.*: use --language hi"),
    ],
)
def test_text_of_another_script_is_refused(text: str, language: str, message: str) -> None:
    """It would be said as "Japanese letter, Japanese letter"."""
    with pytest.raises(KokoroNpuError, match=message):
        Phonemizer(ALPHABET, language, tagger=False)(text)


@pytest.mark.parametrize(
    ("text", "language"),
    [("naïve Łódź ß, ʼtis ﬁne", "en-us"), ("an α particle, 5 µmol, 3 Ω, 20 ºC", "en-us"), ("hello दुनिया", "hi")],
)
def test_accents_signs_and_latin_words_are_spoken(text: str, language: str) -> None:
    assert Phonemizer(ALPHABET, language, tagger=False)(text)


def test_paragraphs_lie_between_blank_lines() -> None:
    assert list(paragraphs("One\ntwo.\n\n \nThree.\n\n---\n\n4\n")) == ["One\ntwo.", "Three.", "4\n"]


# Utterances.


def squeeze(phonemes: str) -> str:
    return "".join(phonemes.split())


WORDS = "ðə fˈɛɹi lˈiːvz ðə hˈɑːɹbɚ æt sˈɛvən"
LONG = ". ".join([f"{WORDS}, {WORDS}; {WORDS}"] * 12) + "."


@pytest.mark.parametrize("target", [1, 40, TARGET_PHONEMES, MAX_PHONEMES])
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("text", [LONG, "jˈɛs. nˈO. " * 90, "a" * 2000, f"{WORDS} " * 40, ", ".join([WORDS] * 30), "a"])
def test_nothing_is_lost_and_everything_fits(text: str, target: int, prompt: bool) -> None:
    parts = utterances(text, target, prompt)
    assert squeeze("".join(parts)) == squeeze(text)
    assert all(0 < len(part) <= MAX_PHONEMES and part == part.strip() for part in parts)


def test_whole_sentences_share_an_utterance_up_to_the_target() -> None:
    parts = utterances("wˈʌn tˈuː θɹˈiː fˈɔːɹ. " * 12)
    assert all(part.endswith(".") for part in parts)
    assert all(len(part) <= TARGET_PHONEMES for part in parts)
    assert all(len(a) + 1 + len(b.split(". ")[0]) > TARGET_PHONEMES - 1 for a, b in pairwise(parts))


def test_a_prompt_first_utterance_is_one_sentence_but_not_a_word() -> None:
    sentence = "wˈʌn tˈuː θɹˈiː fˈɔːɹ fˈIv."
    assert utterances(f"{sentence} {sentence} {sentence}", prompt=True) == [sentence, f"{sentence} {sentence}"]
    assert utterances(f"jˈɛs. {sentence} {sentence}", prompt=True)[0] == f"jˈɛs. {sentence}"
    assert len(sentence) > FEWEST_PHONEMES


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a b, c d. e f, g h", "a b, c d."),
        ("a b c: d e, f g h", "a b c:"),
        ("a b c, d e f — g", "a b c,"),
        ("a. bbb ccc ddd eee fff ggg", "a. bbb ccc ddd"),  # the full stop is at the edge
        ("a (b c.) d e f", "a (b c.)"),
        ("aaaa", "aa"),
        ("wˈʌn.fˈIv ænd tˈuː", "wˈʌn.fˈIv"),  # no space after the dot: no full stop
    ],
)
def test_cut_takes_the_best_mark_near_the_middle(text: str, left: str) -> None:
    parts = cut(text)
    assert parts[0] == left
    assert squeeze("".join(parts)) == squeeze(text)


def test_a_long_sentence_is_cut_at_clauses_and_never_in_a_word() -> None:
    text = re.sub(r"[.]", ",", LONG)
    parts = list(sentences(text))
    assert len(parts) > 1
    assert all(boundary_at_end(part) in (Boundary.CLAUSE, Boundary.PHRASE) for part in parts)


@pytest.mark.parametrize(
    ("text", "boundary"),
    [
        ("a b.", Boundary.SENTENCE),
        ("a b?”", Boundary.SENTENCE),
        ("a;", Boundary.CLAUSE),
        ("a —", Boundary.PHRASE),
        ("a", Boundary.WORD),
        ("a, b", Boundary.WORD),
    ],
)
def test_the_boundary_at_the_end(text: str, boundary: Boundary) -> None:
    assert boundary_at_end(text) is boundary


# misaki's English front end, where its tagger is installed.


@pytest.fixture
def tagger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of the tagger's name whose model calls every word a noun."""
    import spacy

    pipeline = spacy.blank("en")
    pipeline.meta |= {"name": "core_web_sm", "version": "0.0.1"}
    pipeline.add_pipe("tok2vec")
    pipeline.add_pipe("tagger").add_label("NN")  # type: ignore[attr-defined]
    pipeline.initialize()
    package = tmp_path / "en_core_web_sm"
    package.mkdir()
    pipeline.to_disk(package / "en_core_web_sm-0.0.1")
    (package / "meta.json").write_text(json.dumps(pipeline.meta))
    (package / "__init__.py").write_text(
        "from spacy.util import load_model_from_init_py\n"
        "def load(**overrides):\n    return load_model_from_init_py(__file__, **overrides)\n"
    )
    info = tmp_path / "en_core_web_sm-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: en_core_web_sm\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(package.name, None)


@pytest.mark.usefixtures("tagger")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_misakis_dictionary_speaks_where_its_tagger_is_installed() -> None:
    to_phonemes = Phonemizer(ALPHABET)
    assert to_phonemes("Hello world, Dr. Zzyzx!") != Phonemizer(ALPHABET, tagger=False)("Hello world, Dr. Zzyzx!")
    assert to_phonemes("Hello world!") == "həlˈO wˈɜɹld!"
    assert Phonemizer(ALPHABET, "es")("Hola.") == Phonemizer(ALPHABET, "es", tagger=False)("Hola.")


@pytest.mark.weights
def test_the_alphabet_here_and_in_the_docs_is_the_models(real_weights: Path) -> None:
    vocab = set(load_config(real_weights)["vocab"])
    assert vocab == ALPHABET
    docs = (Path(__file__).resolve().parents[1] / "docs/say.md").read_text(encoding="utf-8")
    block = docs.partition("each symbol one token")[2].split("```")[1]
    symbols = block.replace("and space", "").replace("(diphthongs and more, as misaki writes them)", "")
    assert set(symbols) - {"\n"} == vocab
