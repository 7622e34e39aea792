"""The runtime judged against PyTorch: that the judge can tell, and the figure on the real weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from kokoro import KModel

from kokoro_npu.build.labels import FP32, QUANTIZED
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.speech.evaluation import against_pytorch, check_gate, summary
from kokoro_npu.speech.models import Models, models_of_build
from kokoro_npu.speech.phonemizer import Phonemizer
from kokoro_npu.speech.synthesizer import SpokenUtterance, Synthesizer
from kokoro_npu.weights.canonical import load_voices

ROOT = Path(__file__).resolve().parents[1]
EXACT_DB = 85.0
SENTENCES = (ROOT / "data/sentences.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def synthesizer(narrow_build: Path) -> Synthesizer:
    return Synthesizer(models_of_build(narrow_build, FP32), 1)


def test_every_sentence_is_judged_with_its_voice_and_speed(narrow: KModel, synthesizer: Synthesizer) -> None:
    table = against_pytorch(narrow, synthesizer, str.lower, ["ABC def.", "Hg.", "Fed cab."], seed=1)
    report = summary(table, {FP32: synthesizer, QUANTIZED: synthesizer}, str.lower, "ab cd.", runs=1)
    assert table["sentence"].tolist() == [1, 2, 3]
    assert table["voice"].tolist() == ["jf_alpha", "jm_kumo", "jf_alpha"]
    assert table["speed"].tolist() == [1.0, 0.9, 1.2]
    assert table["phonemes"].tolist() == ["abc def.", "hg.", "fed cab."]
    check_gate(table, EXACT_DB)
    assert report["fp32_snr_db_min"] == pytest.approx(table["snr_db"].min(), abs=0.001)
    assert (report["sentences"], report["utterances"], report["duration_mismatches"]) == (3, 3, 0)
    assert 0 < report["first_sound_ratio"] <= report["all_ratio"]
    assert report["seconds"] == report["quantized_seconds"] > 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda audio: np.roll(audio, 1),  # one sample late
        lambda audio: audio * 1.001,
        lambda audio: np.append(audio[:-600], np.zeros(600, np.float32)),  # the last frame is missing
        lambda audio: audio * np.float32("nan"),
    ],
)
def test_a_fault_in_the_runtime_misses_the_gate(
    narrow: KModel, synthesizer: Synthesizer, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[np.ndarray], np.ndarray]
) -> None:
    decode = Synthesizer.decode

    def faulty(self: Synthesizer, *arguments: object) -> SpokenUtterance:
        spoken = decode(self, *arguments)  # type: ignore[arg-type]
        return replace(spoken, audio=spoil(spoken.audio))

    monkeypatch.setattr(Synthesizer, "decode", faulty)
    table = against_pytorch(narrow, synthesizer, str.lower, ["abc def."], seed=0)
    with pytest.raises(KokoroNpuError, match=r"sentence 1 has \S+ dB against PyTorch, the gate is 85"):
        check_gate(table, EXACT_DB)


def test_other_durations_miss_the_gate() -> None:
    table = pd.DataFrame({"sentence": [1], "snr_db": [110.0], "duration_mismatches": [2]})
    with pytest.raises(KokoroNpuError, match="2 durations differ from PyTorch's"):
        check_gate(table, EXACT_DB)


def test_there_are_twenty_sentences_and_none_is_in_the_corpus() -> None:
    corpus = yaml.safe_load((ROOT / "data/corpus.yaml").read_text(encoding="utf-8"))["utterances"]
    assert len(set(SENTENCES)) == len(SENTENCES) == 20
    assert all(sentence.strip() for sentence in SENTENCES)
    assert set(SENTENCES).isdisjoint(utterance["text"] for utterance in corpus)


@pytest.mark.weights
def test_twenty_sentences_equal_pytorch(real_weights: Path, real_kmodel: KModel, tmp_path: Path) -> None:
    """From text to audio, on one bucket of 5 s to save time; speech-eval does it on all, with whole sentences."""
    duration, prosody, decoder = (tmp_path / f"{name}.onnx" for name in ("duration", "prosody", "decoder"))
    write_onnx(duration, export_duration(real_kmodel))
    write_onnx(prosody, export_prosody(real_kmodel))
    bucket = Bucket(200)
    write_onnx(decoder, export_decoder(real_kmodel, bucket))
    voices = load_voices(real_weights)
    synthesizer = Synthesizer(Models(duration, prosody, {bucket.frames: decoder}, voices, real_kmodel.vocab))
    # Sentences 16 to 20 are of 7 to 13 s: their first clause stands for them.
    short = [*SENTENCES[:15], *(sentence.partition(",")[0].partition(":")[0] + "." for sentence in SENTENCES[15:])]
    table = against_pytorch(real_kmodel, synthesizer, Phonemizer(real_kmodel.vocab, tagger=False), short, seed=0)
    assert table["sentence"].nunique() == 20
    check_gate(table, EXACT_DB)
