"""Latency and memory of the split model on ONNX Runtime CPU, with PyTorch beside it in the same run.

Each engine is measured in a process of its own, one after the other, so that its peak memory is its own. Nothing here
says how fast an NPU is.
"""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from kokoro_npu.geometry import FRAMES_PER_SECOND, Array, Bucket
from kokoro_npu.machine import peak_rss_bytes

# Those processes import this module: what is imported above counts as the memory of every engine.

BACKEND = "onnxruntime-cpu"

_ROOT = str(Path(__file__).resolve().parents[2])
_ENTRY = "from kokoro_npu.evaluate.cpu_profile import answer; answer()"
_FEWEST_RUNS = 2


@dataclass(frozen=True)
class Timing:
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
class Phrase:
    """What is synthesized, ready for either engine.

    Attributes:
        tokens: [1, S] int64.
        voice: [1, 256] float32.
        speed: divides durations.
        frames: L, which the phrase gives.
    """

    tokens: npt.NDArray[np.int64]
    voice: Array
    speed: float
    frames: int


def profile_bucket(
    phrase: Phrase,
    bucket: Bucket,
    duration: Path,
    prosody: Path,
    decoders: Mapping[str, Path],
    weights_dir: Path,
    timing: Timing,
) -> dict[str, Any]:
    """Measure the split model with each decoder, and upstream's unpadded PyTorch model, on one phrase.

    Args:
        phrase: what to say; of a longer one the split model decodes the first ``bucket.frames`` frames.
        bucket: of the decoders.
        duration: ``kokoro_duration.onnx``.
        prosody: ``kokoro_prosody.onnx``.
        decoders: prefix of the report's keys to decoder; the empty prefix is the float decoder.
        weights_dir: canonical weights, for PyTorch.
        timing: how long to measure.

    Returns:
        Flat report: the keys of `timed` (with each prefix, and ``torch_``), and ``gmacs``, ``weight_bytes``,
        ``activation_bytes`` of each decoder.
    """
    from kokoro_npu.graphs.cost import count

    report: dict[str, Any] = {
        "backend": BACKEND,
        "frames": bucket.frames,
        "utterance_frames": phrase.frames,
        "threads": timing.threads,
    }
    for prefix, decoder in decoders.items():
        measured = in_own_process(measure_split, phrase, bucket, duration, prosody, decoder, timing)
        cost = count(decoder)
        measured |= {"weight_bytes": cost.weight_bytes, "activation_bytes": cost.activation_bytes}
        report |= {f"{prefix}{name}": value for name, value in measured.items()} | {"gmacs": cost.gmacs}
    measured = in_own_process(measure_torch, phrase, weights_dir, timing)
    return report | {f"torch_{name}": value for name, value in measured.items()}


def in_own_process(measure: Callable[..., Any], *arguments: Any) -> Any:
    """What ``measure``, a function of an importable module, returns from a new process, if JSON can hold it.

    Multiprocessing would import the caller's main module there as well.
    """
    paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]  # this library first, whatever the user's path holds
    run = subprocess.run(
        [sys.executable, "-P", "-c", _ENTRY],
        input=pickle.dumps((measure, arguments)),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        check=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


def answer() -> None:
    """Answer the call on standard input by the last line of standard output."""
    measure, arguments = pickle.load(sys.stdin.buffer)
    print(json.dumps(measure(*arguments)))


def measure_split(
    phrase: Phrase, bucket: Bucket, duration: Path, prosody: Path, decoder: Path, timing: Timing
) -> dict[str, Any]:
    """Measure the split model on ONNX Runtime CPU; of a phrase longer than the bucket, its first frames are decoded."""
    from kokoro_npu.graphs.sessions import cpu_session
    from kokoro_npu.host.frontend import Frontend
    from kokoro_npu.host.source_noise import corpus_noise
    from kokoro_npu.host.steps import crop, pad_to_bucket, trim

    start = time.perf_counter()
    frontend = Frontend(duration, prosody, timing.threads)
    session = cpu_session(decoder, timing.threads)
    load = time.perf_counter() - start
    frames = min(phrase.frames, bucket.frames)
    noise = corpus_noise(0)

    def synthesize() -> None:
        features = frontend.prepare(phrase.tokens, phrase.voice, phrase.speed, noise).features
        if frames < phrase.frames:
            features = crop(features, frames)
        trim(session.run(None, pad_to_bucket(features, bucket))[0], frames)

    return timed(synthesize, frames, timing, load, f"profile {bucket.frames} {decoder.parent.name}")


def measure_torch(phrase: Phrase, weights_dir: Path, timing: Timing) -> dict[str, Any]:
    """Measure upstream's unpadded PyTorch model on the whole phrase."""
    import torch

    from kokoro_npu.weights.kmodel import load_kmodel

    torch.set_num_threads(timing.threads)
    start = time.perf_counter()
    model = load_kmodel(weights_dir)
    load = time.perf_counter() - start
    tokens, voice = torch.from_numpy(phrase.tokens), torch.from_numpy(phrase.voice)

    def synthesize() -> None:
        with torch.inference_mode():
            model.forward_with_tokens(tokens, voice, phrase.speed)

    return timed(synthesize, phrase.frames, timing, load, "profile torch")


def timed(synthesize: Callable[[], None], frames: int, timing: Timing, load: float, name: str) -> dict[str, Any]:
    """Time ``synthesize``, which makes ``frames`` frames of audio and took ``load`` seconds to load.

    Returns:
        ``rtf_p50``, ``latency_ms_p50``, ``latency_ms_p95``, ``load_ms``, ``runs``, ``peak_rss_bytes`` of the process.
    """
    seconds: list[float] = []
    for number in tqdm(range(-timing.warmup, timing.runs), desc=name, unit="run"):
        if len(seconds) >= _FEWEST_RUNS and sum(seconds) > timing.seconds:
            break
        start = time.perf_counter()
        synthesize()
        elapsed = time.perf_counter() - start
        # What warms up in a run that long is nothing beside it.
        if number >= 0 or elapsed > timing.seconds:
            seconds.append(elapsed)
    p50, p95 = (float(np.percentile(seconds, q)) for q in (50, 95))
    return {
        "rtf_p50": round(p50 * FRAMES_PER_SECOND / frames, 4),
        "latency_ms_p50": round(1000 * p50, 1),
        "latency_ms_p95": round(1000 * p95, 1),
        "load_ms": round(1000 * load, 1),
        "runs": len(seconds),
        "peak_rss_bytes": peak_rss_bytes(),
    }
