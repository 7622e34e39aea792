"""Latency and memory of the split model on ONNX Runtime CPU, with PyTorch beside it in the same run.

Each engine is measured in a process of its own, one after the other, so that its peak memory is its own. Nothing here
says how fast an NPU is.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from kokoro_npu.geometry import FRAMES_PER_SECOND, Bucket
from kokoro_npu.graphs.cost import count

# torch is imported only inside the PyTorch process: imported here, it would count as ONNX Runtime's memory.

BACKEND = "onnxruntime-cpu"

_FEWEST_RUNS = 2


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Attributes:
        warmup: runs that are not counted, unless one takes longer than ``seconds``.
        runs: runs that are counted, at most.
        seconds: no further run is started after so many seconds, once there are two: a long bucket takes half a
            minute a run.
        threads: of each engine.
    """

    warmup: int
    runs: int
    seconds: float
    threads: int


@dataclass(frozen=True)
class Sentence:
    """What is synthesized, ready for either engine.

    Attributes:
        tokens: [1, S] int64.
        voice: [1, 256] float32.
        speed: divides durations.
        frames: L, which the sentence gives.
    """

    tokens: npt.NDArray[np.int64]
    voice: npt.NDArray[np.float32]
    speed: float
    frames: int


def profile_bucket(
    sentence: Sentence,
    bucket: Bucket,
    duration: Path,
    prosody: Path,
    decoders: Mapping[str, Path],
    weights_dir: Path,
    settings: Settings,
) -> dict[str, Any]:
    """Measure the split model with each decoder, and upstream's unpadded PyTorch model, on one sentence.

    Args:
        sentence: what to say; of a longer one the split model decodes the first ``bucket.frames`` frames.
        bucket: of the decoders.
        duration: ``kokoro_duration.onnx``.
        prosody: ``kokoro_prosody.onnx``.
        decoders: prefix of the report's keys to decoder; the empty prefix is the float decoder.
        weights_dir: canonical weights, for PyTorch.
        settings: how long to measure.

    Returns:
        Flat report: ``rtf_p50``, ``latency_ms_p50``, ``latency_ms_p95``, ``load_ms``, ``runs``, ``peak_rss_bytes``
        (with each prefix, and ``torch_``), and ``gmacs``, ``weight_bytes``, ``activation_bytes`` of each decoder.
    """
    report: dict[str, Any] = {
        "backend": BACKEND,
        "frames": bucket.frames,
        "utterance_frames": sentence.frames,
        "threads": settings.threads,
    }
    for prefix, decoder in decoders.items():
        measured = _in_own_process(_measure_split, sentence, bucket, duration, prosody, decoder, settings)
        cost = count(decoder)
        measured |= {"weight_bytes": cost.weight_bytes, "activation_bytes": cost.activation_bytes}
        report |= {f"{prefix}{name}": value for name, value in measured.items()} | {"gmacs": cost.gmacs}
    measured = _in_own_process(_measure_torch, sentence, weights_dir, settings)
    return report | {f"torch_{name}": value for name, value in measured.items()}


def _in_own_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(measure, *arguments).result()


def _measure_split(
    sentence: Sentence, bucket: Bucket, duration: Path, prosody: Path, decoder: Path, settings: Settings
) -> dict[str, Any]:
    from kokoro_npu.graphs.sessions import cpu_session
    from kokoro_npu.host.frontend import Frontend
    from kokoro_npu.host.source_noise import corpus_noise
    from kokoro_npu.host.steps import crop, pad_to_bucket, trim

    start = time.perf_counter()
    frontend = Frontend(duration, prosody, settings.threads)
    session = cpu_session(decoder, settings.threads)
    load = time.perf_counter() - start
    frames = min(sentence.frames, bucket.frames)

    def synthesize() -> None:
        features = frontend.prepare(sentence.tokens, sentence.voice, sentence.speed, corpus_noise(0)).features
        if frames < sentence.frames:
            features = crop(features, frames)
        trim(session.run(None, pad_to_bucket(features, bucket))[0], frames)

    return _timed(synthesize, frames, settings, load, f"profile {bucket.frames} {decoder.parent.name}")


def _measure_torch(sentence: Sentence, weights_dir: Path, settings: Settings) -> dict[str, Any]:
    import torch

    from kokoro_npu.weights.kmodel import load_kmodel

    torch.set_num_threads(settings.threads)
    start = time.perf_counter()
    model = load_kmodel(weights_dir)
    load = time.perf_counter() - start
    tokens, voice = torch.from_numpy(sentence.tokens), torch.from_numpy(sentence.voice)

    def synthesize() -> None:
        with torch.inference_mode():
            model.forward_with_tokens(tokens, voice, sentence.speed)

    return _timed(synthesize, sentence.frames, settings, load, "profile torch")


def _timed(synthesize: Callable[[], None], frames: int, settings: Settings, load: float, name: str) -> dict[str, Any]:
    seconds: list[float] = []
    for number in tqdm(range(-settings.warmup, settings.runs), desc=name, unit="run"):
        if len(seconds) >= _FEWEST_RUNS and sum(seconds) > settings.seconds:
            break
        start = time.perf_counter()
        synthesize()
        elapsed = time.perf_counter() - start
        # What warms up in a run that long is nothing beside it.
        if number >= 0 or elapsed > settings.seconds:
            seconds.append(elapsed)
    p50, p95 = (float(np.percentile(seconds, q)) for q in (50, 95))
    return {
        "rtf_p50": round(p50 * FRAMES_PER_SECOND / frames, 4),
        "latency_ms_p50": round(1000 * p50, 1),
        "latency_ms_p95": round(1000 * p95, 1),
        "load_ms": round(1000 * load, 1),
        "runs": len(seconds),
        # kilobytes, but bytes on macOS
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
    }
