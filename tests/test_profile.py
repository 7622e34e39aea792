"""The profile's report: its keys, its provenance, and that it ran the models it was given."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from kokoro import KModel

from kokoro_npu.evaluate.cpu_profile import (
    BACKEND,
    Phrase,
    Timing,
    in_own_process,
    measure_split,
    profile_bucket,
    timed,
)
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import VOICE_DIM, Bucket
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.host.source_noise import corpus_noise
from kokoro_npu.machine import peak_rss_bytes
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.weights import writing
from kokoro_npu.weights.kmodel import unused_tensors
from tests.tiny_model import tiny_config, tiny_kmodel, tiny_voice

BUCKET = Bucket(8)
MEASURED = ("rtf_p50", "latency_ms_p50", "latency_ms_p95", "load_ms", "runs", "peak_rss_bytes")


@pytest.fixture(scope="module")
def phrase() -> Phrase:
    """A phrase longer than the bucket, so that the split model has to cut it."""
    tokens = np.array([[0, 3, 1, 4, 1, 5, 9, 2, 6, 5, 0]])
    voice = (0.3 * np.random.default_rng(0).standard_normal((1, VOICE_DIM))).astype(np.float32)
    durations = tiny_kmodel(0).forward_with_tokens(torch.from_numpy(tokens), torch.from_numpy(voice))[1]
    frames = int(durations.sum())
    assert frames > BUCKET.frames
    return Phrase(tokens, voice, 1.0, frames)


@pytest.fixture(scope="module")
def models(narrow: KModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as ONNX files and as canonical weights."""
    out = tmp_path_factory.mktemp("models")
    model = tiny_kmodel(0)
    write_onnx(out / "kokoro_duration.onnx", export_duration(model))
    write_onnx(out / "kokoro_prosody.onnx", export_prosody(model))
    write_onnx(out / "kokoro_decoder.onnx", export_decoder(narrow, BUCKET))
    unused = unused_tensors(model)
    tensors = {name: value.numpy() for name, value in model.state_dict().items() if name not in unused}
    writing.write(out, tensors, {"v": tiny_voice(0)}, tiny_config(), {"source": "file"})
    return out


def test_the_report(models: Path, phrase: Phrase) -> None:
    report = profile_bucket(
        phrase,
        BUCKET,
        models / "kokoro_duration.onnx",
        models / "kokoro_prosody.onnx",
        {"": models / "kokoro_decoder.onnx", "quantized_": models / "kokoro_decoder.onnx"},
        models,
        Timing(warmup=1, runs=3, seconds=600, threads=1),
    )
    costs = ("weight_bytes", "activation_bytes")
    expected = {f"{prefix}{name}" for prefix in ("", "quantized_") for name in (*MEASURED, *costs)}
    expected |= {f"torch_{name}" for name in MEASURED}
    expected |= {"backend", "frames", "utterance_frames", "threads", "gmacs"}
    assert set(report) == expected
    # Nothing may pass for an NPU's latency.
    assert report["backend"] == BACKEND == "onnxruntime-cpu"
    assert (report["frames"], report["utterance_frames"], report["runs"]) == (8, phrase.frames, 3)
    numbers = {name: value for name, value in report.items() if name != "backend"}
    assert all(isinstance(value, int | float) and value > 0 for value in numbers.values()), numbers
    for prefix in ("", "quantized_", "torch_"):
        assert report[f"{prefix}latency_ms_p50"] <= report[f"{prefix}latency_ms_p95"]
        # Real time is that of what was spoken: the split model says a bucket, PyTorch the whole phrase.
        seconds = (phrase.frames if prefix == "torch_" else BUCKET.frames) / 40
        # Both figures are rounded.
        rounding = 0.06 / (1000 * seconds) + 6e-5
        assert report[f"{prefix}rtf_p50"] == pytest.approx(
            report[f"{prefix}latency_ms_p50"] / 1000 / seconds, abs=rounding
        )
        assert report[f"{prefix}peak_rss_bytes"] > 50e6
    assert report["weight_bytes"] == report["quantized_weight_bytes"]


def test_a_short_sentence_is_measured_whole(models: Path, phrase: Phrase) -> None:
    tokens = phrase.tokens[:, :2]
    frontend = Frontend(models / "kokoro_duration.onnx", models / "kokoro_prosody.onnx")
    frames = frontend.prepare(tokens, phrase.voice, 1.0, corpus_noise(0)).frames
    assert frames <= BUCKET.frames
    short = Phrase(tokens, phrase.voice, 1.0, frames)
    duration, prosody, decoder = (models / f"kokoro_{name}.onnx" for name in ("duration", "prosody", "decoder"))
    report = measure_split(short, BUCKET, duration, prosody, decoder, Timing(warmup=0, runs=1, seconds=600, threads=1))
    assert set(report) == set(MEASURED)
    rounding = 0.06 / (1000 * frames / 40) + 6e-5
    assert report["rtf_p50"] == pytest.approx(report["latency_ms_p50"] / 25 / frames, abs=rounding)


# A warm-up that outlasts the budget is counted, so that nothing but the two runs is made.
@pytest.mark.parametrize(("seconds", "runs", "made"), [(600.0, 4, 3 + 4), (0.0, 2, 2)])
def test_a_slow_bucket_is_measured_at_least_twice(seconds: float, runs: int, made: int) -> None:
    calls: list[int] = []
    report = timed(lambda: calls.append(1), 40, Timing(3, 4, seconds, 1), 0.25, "known")
    assert report["runs"] == runs
    assert len(calls) == made
    assert report["load_ms"] == 250


def test_a_measured_process_imports_only_its_engine(models: Path, phrase: Phrase) -> None:
    """Whatever the process holds that asks for it: this one holds torch, a stage holds Hydra."""
    assert "torch" in sys.modules
    paths = [models / f"kokoro_{name}.onnx" for name in ("duration", "prosody", "decoder")]
    measured = "__import__('kokoro_npu.evaluate.cpu_profile', fromlist=['_']).measure_split(*arguments)"
    names = {"arguments": (phrase, BUCKET, *paths, Timing(warmup=0, runs=1, seconds=600, threads=1))}
    report, modules = in_own_process(eval, f"[{measured}, sorted(__import__('sys').modules)]", names)
    assert set(report) == set(MEASURED)
    assert "onnxruntime" in modules
    others = {"torch", "kokoro", "transformers", "hydra", "omegaconf", "onnx", "pandas", "scipy", "stages", "pytest"}
    assert others & {name.partition(".")[0] for name in modules} == set()


def test_the_memory_of_a_measured_process_is_its_own() -> None:
    ours = np.ones(50_000_000)  # Linux's ru_maxrss of a child begins with what its parent held
    assert peak_rss_bytes() > ours.nbytes
    assert in_own_process(peak_rss_bytes) < ours.nbytes / 2
