"""Source noise, joining, and the synthesizer on a narrow model against upstream's."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from kokoro import KModel
from scipy import stats

from kokoro_npu.audio import metrics
from kokoro_npu.build.labels import FP32
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import SAMPLE_RATE, Bucket
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.host.source_noise import _points, corpus_noise, ln, speech_noise
from kokoro_npu.host.tokens import tokenize, voice_row
from kokoro_npu.model import reference
from kokoro_npu.speech import joining
from kokoro_npu.speech.joining import FADE, PAUSES, shape
from kokoro_npu.speech.models import Models, models_of_build
from kokoro_npu.speech.synthesizer import SpokenUtterance, Synthesizer
from kokoro_npu.speech.utterances import Boundary
from tests.narrow_build import BUCKETS, VOICE

# Source noise.


def scalar_draws(seed: int, count: int) -> list[float]:
    """The definition, one word at a time, in Python's integers and floats."""
    state = seed
    draws: list[float] = []

    def coordinate() -> float:
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return ((z ^ (z >> 31)) >> 11) * 2.0**-52 - 1

    while len(draws) < count:
        u, v = coordinate(), coordinate()
        s = u * u + v * v
        if 0 < s < 1:
            factor = np.sqrt(-2.0 * ln(np.array([s]))[0] / s)
            draws += [float(np.float32(u * factor)), float(np.float32(v * factor))]
    return draws[:count]


SCARCE = 694
"""A seed whose points lie outside the disc so often that more are needed for 600 draws."""


@pytest.mark.parametrize("count", [0, 1, 2, 7, 600])
@pytest.mark.parametrize("seed", [0, 1, SCARCE, 2**63 - 1])
def test_draws_are_those_of_the_definition(seed: int, count: int) -> None:
    noise = speech_noise(seed)
    assert noise(count).tolist() == scalar_draws(seed, count)
    assert noise(count).dtype == np.float32  # and again the same, not the next ones
    assert noise(count).tolist() == scalar_draws(seed, count)


def test_the_generator_is_splittable_random() -> None:
    """First word of ``new java.util.SplittableRandom(0)``: the published test value of SplitMix64."""
    first = _points(0, 1)[0, 0]
    assert first == (0xE220A8397B1DCDAF >> 11) * 2.0**-52 - 1


def test_the_corpus_draws_what_its_encodings_were_calibrated_on() -> None:
    """NumPy's generator, seeded by the build's seed and the CRC-32 of the id: published as 0xCBF43926 for 123456789."""
    expected = np.random.default_rng([3, 0xCBF43926]).standard_normal((1, 1, 700), dtype=np.float32)
    assert np.array_equal(corpus_noise(3, "123456789")(700), expected[0, 0])
    assert np.array_equal(corpus_noise(3)(700), np.random.default_rng(3).standard_normal(700, dtype=np.float32))


def test_draws_are_normal_and_independent() -> None:
    draws = speech_noise(1)(200_000).astype(np.float64)
    assert stats.kstest(draws, "norm").pvalue > 0.01
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(draws, speech_noise(1, 1)(200_000))[0, 1]) < 0.01


def test_the_logarithm_is_exact_to_a_bit_or_two() -> None:
    x = np.concatenate([np.random.default_rng(0).uniform(0, 1, 10_000), [2.0**-104, 0.5, 1 - 2**-53, 1.0]])
    np.testing.assert_allclose(ln(x), np.log(x), rtol=5e-16)


# Joining.


def tone(seconds: float, silence: float = 0.0) -> np.ndarray:
    """A 200 Hz cosine, which starts and ends in the middle of nowhere, between silences."""
    sound = 0.5 * np.cos(2 * np.pi * 200 * np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE)
    return np.pad(sound, int(silence * SAMPLE_RATE)).astype(np.float32)


def clicks(signal: np.ndarray) -> float:
    """The steepest step of the signal over the steepest of the tone itself."""
    return float(np.abs(np.diff(signal)).max() / np.abs(np.diff(tone(1))).max())


def test_joints_do_not_click() -> None:
    first, second = tone(0.5125), tone(0.3725)  # half a period more than whole ones
    assert clicks(np.concatenate([first, second])) > 5  # what it would be
    joined = np.concatenate([shape(first, None, Boundary.WORD), shape(second, Boundary.WORD, None)])
    assert clicks(joined) < 1.01
    assert len(joined) == len(first) + len(second)


@pytest.mark.parametrize("boundary", list(Boundary))
def test_a_joint_has_its_pause_and_loses_no_sound(boundary: Boundary) -> None:
    sound = tone(0.3)
    joined = np.concatenate(
        [shape(tone(0.3, 0.9), None, boundary), shape(tone(0.3, 0.9), boundary, None)],
    )
    outer = int(0.9 * SAMPLE_RATE)
    pause = int(PAUSES[boundary] * SAMPLE_RATE)
    assert abs(len(joined) - 2 * (len(sound) + outer) - pause) <= 2
    for kept in (joined[outer : outer + len(sound)], joined[-outer - len(sound) : -outer]):
        if pause >= 2 * FADE:
            assert np.array_equal(kept, sound)


def test_the_ends_of_a_speech_stay_as_they_are() -> None:
    audio = tone(0.2, 0.5)
    assert np.array_equal(shape(audio, None, None), audio)


def test_silence_stays_silence() -> None:
    assert not shape(np.zeros(5000, np.float32), Boundary.SENTENCE, Boundary.SENTENCE).any()
    assert len(shape(np.zeros(0, np.float32), Boundary.WORD, Boundary.WORD)) == 0


# The synthesizer.

EXACT_DB = 85.0


@pytest.fixture(scope="module")
def models(narrow_build: Path) -> Models:
    return models_of_build(narrow_build, FP32)


@pytest.fixture(scope="module")
def synthesizer(models: Models) -> Synthesizer:
    return Synthesizer(models, threads=1)


def say(
    synthesizer: Synthesizer, phonemes: str, voice: str = VOICE, speed: float = 1.0, seed: int = 0, index: int = 0
) -> SpokenUtterance:
    """One utterance, whole."""
    return synthesizer.decode(phonemes, synthesizer.prepare(phonemes, voice, speed, seed, index))


def upstream(model: KModel, models: Models, phonemes: str, speed: float, seed: int, index: int) -> np.ndarray:
    """PyTorch's audio of one utterance with the same source."""
    tokens, row = tokenize(phonemes, models.vocab, "here"), voice_row(models.voices, VOICE, phonemes)
    prepared = Frontend(models.duration, models.prosody, 1).prepare(tokens, row, speed, speech_noise(seed, index))
    noise = prepared.features["noise"]
    return reference.synthesize(model, tokens, row, speed, noise, prepared.frames)[0]


@pytest.mark.parametrize(("phonemes", "speed", "seed"), [("abc def.", 1.0, 0), ("a", 1.0, 3), ("hgfe dcba", 1.5, 9)])
def test_an_utterance_is_pytorchs(
    synthesizer: Synthesizer, models: Models, narrow: KModel, phonemes: str, speed: float, seed: int
) -> None:
    spoken = say(synthesizer, phonemes, VOICE, speed, seed, index=4)
    truth = upstream(narrow, models, phonemes, speed, seed, 4)
    assert spoken.audio.shape == truth.shape == (600 * spoken.frames,)
    assert spoken.bucket == Bucket(min(size for size in BUCKETS if size >= spoken.frames))
    assert metrics.snr_db(truth, spoken.audio) > EXACT_DB
    other = say(synthesizer, phonemes, VOICE, speed, seed + 1, index=4)
    assert metrics.snr_db(truth, other.audio) < EXACT_DB  # the figure can be missed


def test_one_utterance_of_a_text_is_left_as_it_is(synthesizer: Synthesizer) -> None:
    (spoken,) = synthesizer.speak(["abc def."], VOICE)
    assert np.array_equal(spoken.audio, say(synthesizer, "abc def.").audio)


def test_a_text_longer_than_the_largest_bucket_is_spoken_in_utterances(synthesizer: Synthesizer) -> None:
    text = "abcd efgh. " * 6 + "a b c d e f g h " * 5
    with pytest.raises(KokoroNpuError, match=r"do not fit any bucket \[16, 40\]: split the text"):
        say(synthesizer, text.strip())
    spoken = list(synthesizer.speak([text, "abc."], VOICE, seed=2))
    assert "".join("".join(part.phonemes for part in spoken).split()) == "".join((text + "abc.").split())
    assert all(part.frames <= part.bucket.frames for part in spoken)
    # The middle of an utterance is what it is alone; its ends are shaped, each beside a joint.
    part = spoken[1]
    alone = say(synthesizer, part.phonemes, seed=2, index=1).audio
    assert not np.array_equal(part.audio, alone)
    middle = part.audio[FADE:-FADE]
    assert any(np.array_equal(middle, alone[at : at + len(middle)]) for at in range(len(alone) - len(middle) + 1))


def test_a_symbol_that_no_bucket_holds_is_an_error(models: Models) -> None:
    small = Models(models.duration, models.prosody, {2: models.decoders[16]}, models.voices, models.vocab)
    with pytest.raises(KokoroNpuError, match=r"do not fit any bucket \[2\]"):
        list(Synthesizer(small, 1).speak(["ab"], VOICE))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("abq", VOICE, 1.0), "'q' .* is not in Kokoro's phoneme alphabet"),
        (("ab", "jf_alpa", 1.0), "did you mean jf_alpha"),
        (("ab", VOICE, 0.0), "speed 0 is out of range; use 0.25 to 4"),
        (("ab", VOICE, float("nan")), "speed nan is out of range"),
        (("a" * 511, VOICE, 1.0), "511 phonemes; between 1 and 510 fit"),
    ],
)
def test_what_cannot_be_said_is_one_line(
    synthesizer: Synthesizer, arguments: tuple[str, str, float], message: str
) -> None:
    with pytest.raises(KokoroNpuError, match=message):
        say(synthesizer, *arguments)


def test_decoders_of_other_weights_are_passed_over(narrow_build: Path, tmp_path: Path) -> None:
    """As a changed bucket list and then changed weights leave one behind."""
    shutil.copytree(narrow_build, tmp_path, dirs_exist_ok=True)
    stale = tmp_path / "decoder/kokoro_decoder_24.onnx"
    stale.write_bytes((tmp_path / "decoder/kokoro_decoder_40.onnx").read_bytes())
    assert sorted(models_of_build(tmp_path, FP32).decoders) == [16, 24, 40]
    index = Pack.index_path(tmp_path / "decoder/kokoro_decoder.weights")
    text = index.read_text()
    places = Pack.open(index.with_suffix("")).places
    offset = next(offset for offset, _ in places.values() if offset)
    index.write_text(text.replace(f'"offset": {offset}\n', f'"offset": {offset + 4096}\n'))
    with pytest.raises(KokoroNpuError, match=r"decoder holds no decoder of the weights beside it: .*make repro"):
        models_of_build(tmp_path, FP32)


def test_what_is_not_built_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"kokoro_duration.onnx is not there: build it first \(make repro\), or"):
        models_of_build(tmp_path, FP32)


def test_the_pauses_follow_the_boundaries() -> None:
    lengths = [joining.PAUSES[boundary] for boundary in Boundary]
    assert lengths == sorted(lengths, reverse=True)
