"""The corpus file's errors, and that the committed corpus is what the project promises."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml

from kokoro_npu.corpus.reference_set import CALIBRATION, EVALUATION
from kokoro_npu.corpus.utterances import load_corpus
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import MAX_TOKENS
from kokoro_npu.host.tokens import tokenize

COMMITTED = Path(__file__).resolve().parents[1] / "data/corpus.yaml"


def _entries() -> list[dict[str, Any]]:
    common = {"voice": "jf_alpha", "speed": 1.0, "phonemes": "a"}
    return [
        {"id": "one", "part": CALIBRATION, "text": "One.", **common},
        {"id": "two", "part": EVALUATION, "text": "Two.", **common},
    ]


def _load(tmp_path: Path, entries: Any) -> None:
    path = tmp_path / "corpus.yaml"
    path.write_text(yaml.safe_dump({"utterances": entries}), encoding="utf-8")
    load_corpus(path)


def test_a_right_file_loads(tmp_path: Path) -> None:
    _load(tmp_path, _entries())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "one"}, "utterance 2: its id 'one' or its text occurs more than once"),
        ({"text": "One."}, "utterance 2: its id 'two' or its text occurs more than once"),
        ({"part": CALIBRATION}, "both parts must have utterances, calibration and evaluation"),
        ({"speed": 0}, "utterance 2: speed is 0; it must be above 0"),
        ({"speed": "fast"}, "utterance 2: speed is 'fast'"),
        ({"pitch": 2}, "utterance 2: .*unexpected keyword argument 'pitch'"),
    ],
)
def test_a_wrong_entry_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    entries = _entries()
    entries[1] |= change
    with pytest.raises(KokoroNpuError, match=message) as caught:
        _load(tmp_path, entries)
    assert "corpus.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    entries = [*_entries(), _entries()[1] | {"id": "three", "text": "Three.", "part": "test"}]
    with pytest.raises(KokoroNpuError, match="utterance 3: part is 'test'; use calibration or evaluation"):
        _load(tmp_path, entries)


def test_a_lacking_field_is_named(tmp_path: Path) -> None:
    entries = _entries()
    del entries[0]["phonemes"]
    with pytest.raises(KokoroNpuError, match=r"utterance 1: .*'phonemes'"):
        _load(tmp_path, entries)


@pytest.mark.parametrize("content", ["", "- a\n- b", "utterances: [", "phrases: []"])
def test_what_is_no_corpus_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "corpus.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(KokoroNpuError, match="expected YAML with a list `utterances`") as caught:
        load_corpus(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"No such file or directory; the parameter `corpus` names it"):
        load_corpus(tmp_path / "none.yaml")


def test_the_committed_corpus() -> None:
    corpus = load_corpus(COMMITTED)
    parts = {part: [u for u in corpus if u.part == part] for part in (CALIBRATION, EVALUATION)}
    assert len(corpus) >= 12
    assert len({utterance.voice for utterance in corpus}) >= 4
    assert all(len({utterance.voice for utterance in part}) >= 3 for part in parts.values())
    # The parts share no text, whatever its case or punctuation.
    plain = [{"".join(filter(str.isalnum, u.text.lower())) for u in part} for part in parts.values()]
    assert not plain[0] & plain[1]
    assert not {u.phonemes for u in parts[CALIBRATION]} & {u.phonemes for u in parts[EVALUATION]}


def test_the_committed_phonemes_fit_the_model() -> None:
    corpus = load_corpus(COMMITTED)
    vocab = {symbol: 1 for utterance in corpus for symbol in utterance.phonemes}
    for utterance in corpus:
        assert tokenize(utterance.phonemes, vocab, utterance.id).shape[1] <= MAX_TOKENS
        assert utterance.phonemes == utterance.phonemes.strip()
        assert not set("0123456789") & set(utterance.phonemes), utterance.id
        # What espeak leaves behind when it is not turned into Kokoro's alphabet, such as U+0329 of a syllabic n.
        assert not [p for p in utterance.phonemes if unicodedata.combining(p)], utterance.id
