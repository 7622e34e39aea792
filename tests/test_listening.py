"""Word error rates, and controls that must fail."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf

from kokoro_npu.audio.wav import write_wav
from kokoro_npu.build.labels import FP32, QUANTIZED, REFERENCE
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.quantize.recipe import Recipe
from pipelines.listening import speak_precisions
from tools.plan import compose

listening = pytest.importorskip("kokoro_npu.evaluate.word_errors")  # extra `listening`

GOOD = {"wer_points_fp32": 0.0, "wer_points_quantized": 0.5, "wer_points_noise": 60.0, "wer_points_half_speed": 55.0}


def check(**changes: float) -> None:
    listening.check_gates(GOOD | changes, [FP32, QUANTIZED], points_max=1.0, control_points_min=30.0)


def test_words_are_what_is_said() -> None:
    assert listening.words("Oh no -- my grandmother's “tea”, it's LATE!") == "oh no my grandmother's tea it's late"


def test_the_rates_are_over_all_words_and_phases() -> None:
    rows = [
        ("a", REFERENCE, 0, 10, 1),
        ("a", REFERENCE, 1, 10, 3),
        ("b", REFERENCE, 0, 30, 0),
        ("b", REFERENCE, 1, 30, 0),
        ("a", QUANTIZED, 0, 10, 2),
        ("a", QUANTIZED, 1, 10, 4),
        ("b", QUANTIZED, 0, 30, 2),
        ("b", QUANTIZED, 1, 30, 0),
        ("a", listening.SLOW, 0, 10, 10),
    ]
    table = pd.DataFrame(rows, columns=["utterance", "variant", "phase", "words", "errors"])
    assert listening.summarize(table) == {
        "utterances": 2,
        "words": 40,
        "wer_reference": 5.0,
        "wer_quantized": 10.0,
        "wer_points_quantized": 5.0,
        "wer_half_speed": 100.0,
        "wer_points_half_speed": 95.0,
    }


def test_good_figures_pass() -> None:
    check()
    check(wer_points_quantized=1.0, wer_points_noise=30.0)
    check(wer_points_quantized=-2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wer_points_quantized": 1.01}, "quantized loses 1.01 points .* more than 1;"),
        ({"wer_points_fp32": float("nan")}, "fp32 loses nan points"),
        ({"wer_points_noise": 29.0}, "the control noise loses 29.0 points, less than 30"),
        ({"wer_points_half_speed": float("nan")}, "the control half-speed loses nan points"),
    ],
)
def test_a_loss_or_a_passing_control_closes_the_gate(change: dict[str, float], message: str) -> None:
    with pytest.raises(KokoroNpuError, match=message):
        check(**change)


def test_each_clip_is_heard_at_every_phase() -> None:
    heard: list[int] = []

    def recogniser(audio: Any) -> str:
        heard.append(len(audio))
        return "the kettle boils now" if len(audio) % 120 else "kettle"

    clip = ("a", QUANTIZED, "The kettle boils!", np.zeros(2400, np.float32))
    control = ("a", listening.NOISE, "The kettle boils!", np.zeros(1200, np.float32))
    table = listening.listen([clip, control], recogniser, phases=4)
    assert heard == [2400, 2460, 2520, 2580, 1200]
    assert table["errors"].tolist() == [2, 1, 2, 1, 2]
    assert table["words"].tolist() == [3] * 5


def test_controls_keep_what_they_must() -> None:
    audio = np.random.default_rng(0).normal(size=4801).astype(np.float32)
    ruined = listening.controls(audio, seed=1)
    noise, slow = ruined[listening.NOISE], ruined[listening.SLOW]
    assert len(noise) == len(audio)
    spectra = [np.abs(np.fft.rfft(x))[1:] for x in (audio, noise)]
    assert spectra[1] == pytest.approx(spectra[0], rel=1e-3, abs=1e-2)
    assert abs(np.corrcoef(audio, noise)[0, 1]) < 0.1
    assert len(slow) == 2 * len(audio)
    assert np.array_equal(listening.controls(audio, seed=1)[listening.NOISE], noise)


def test_a_clip_is_taken_from_the_bucket_that_the_host_would_choose(tmp_path: Path) -> None:
    for frames, utterances in ((60, "a"), (400, "ab")):
        for utterance in utterances:
            for variant in (REFERENCE, FP32, QUANTIZED):
                audio = np.full(600, frames / 1000, np.float32)
                write_wav(tmp_path / str(frames) / f"{utterance}.{variant}.wav", audio)
    texts = {"a": "one", "b": "two", "c": "too long for any"}
    clips = list(listening.clips(tmp_path, [400, 60], texts, 0, {}))
    kept = {(u, v): float(audio[0]) for u, v, _, audio in clips if v not in listening.CONTROLS}
    assert kept == {
        **{("a", v): pytest.approx(0.06, abs=1e-4) for v in (REFERENCE, FP32, QUANTIZED)},
        **{("b", v): pytest.approx(0.4, abs=1e-4) for v in (REFERENCE, FP32, QUANTIZED)},
    }
    assert {v for _, v, _, _ in clips} == {REFERENCE, FP32, QUANTIZED, *listening.CONTROLS}
    with pytest.raises(KokoroNpuError, match="no whole utterance fits"):
        list(listening.clips(tmp_path / "none", [60], texts, 0, {}))


def test_the_recogniser_answers_in_its_vocabulary_and_wants_words_it_can_pronounce() -> None:
    recogniser = listening.pocketsphinx_recogniser(["The kettle boils.", "Kettle, kettle!"])
    noise = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)
    assert set(recogniser(noise).split()) <= {"the", "kettle", "boils"}
    with pytest.raises(KokoroNpuError, match="no pronunciation of qxzzv; use other words"):
        listening.pocketsphinx_recogniser(["the qxzzv"])


def test_the_precisions_that_are_heard_are_those_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken: dict[str, Recipe] = {}
    monkeypatch.setattr(speak_precisions, "load_kmodel", lambda _: None)
    monkeypatch.setattr(speak_precisions, "load_reference_set", lambda *_: [])
    monkeypatch.setattr(
        speak_precisions, "speak", lambda _model, _calibration, _set, recipes, *_: spoken.update(recipes)
    )
    overrides = ["listening.precisions.w8a8.weight_bits=16", "+quantize@listening.precisions.mixed=mixed"]
    params = compose(Path(__file__).resolve().parents[1], overrides)
    inspect.unwrap(speak_precisions.main)(OmegaConf.create(yaml.safe_load(params)))
    assert list(spoken) == ["fp16", "w8a8", "mixed"]
    assert (spoken["fp16"].float, spoken["w8a8"].weight_bits) == (True, 16)
    assert spoken["mixed"].overrides
