"""Models through the HTP emulation, each in a child process, so that a crash costs one answer."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from kokoro_npu.audio import metrics
from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.options import CompileSettings, Target, provider_options
from kokoro_npu.emulation.graph import Tensor
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.cost import Cost
from kokoro_npu.versions import flat_versions

BACKEND = "qnn-htp-emulation"
FP16 = "fp16"
FORMS = (FP16, QUANTIZED)
"""What is emulated: a float graph, which HTP runs in half precision, or one with Q/DQ pairs."""

# Of one core, for the emulation uses no second: 1e9 multiply-accumulates a second, measured on convolutions of the
# decoder, and bytes of activations a second, from what a whole decoder takes (0.2 and 0.1 GMAC/s in all).
_SPEEDS = {FP16: (1.0, 9.0e6), QUANTIZED: (0.15, 5.4e6)}
_START_SECONDS = 1.0
"""What compiling and starting a graph of one op costs."""

_EQUAL_DB = 200.0
"""Stands for equal tensors, whose SNR is infinite; its negative for what is no number."""


@dataclass(frozen=True)
class Job:
    """One run of one model.

    Attributes:
        model: an ONNX graph with static shapes and its weights inside, or the path of a file (a context model too).
        feeds: inputs by name.
    """

    model: onnx.ModelProto | Path
    feeds: dict[str, Tensor]


@dataclass(frozen=True)
class Answer:
    """What came of a job: outputs by name, or the error in one line."""

    outputs: dict[str, Tensor]
    error: str = ""


def require_emulation() -> None:
    """Require the wheel that holds the emulation.

    Raises:
        KokoroNpuError: it is missing or does not load; the message tells why.
    """
    if reason := toolchain.missing_reason():
        raise KokoroNpuError(f"the HTP emulation cannot run here: {reason}")


def estimate_seconds(cost: Cost, form: str) -> float:
    """About how long the emulation of a graph takes on one core, by its counts and its form."""
    macs, activations = _SPEEDS[form]
    return _START_SECONDS + cost.gmacs / macs + cost.activation_bytes / activations


def fingerprint(target: Target, settings: CompileSettings) -> str:
    """All but model and inputs that an answer depends on, as text: a part of the key of whoever keeps answers."""
    parts: list[Any] = [target.soc_model, target.htp_arch, target.vtcm_mb, settings.optimization_level]
    parts += [dict(settings.options), flat_versions(("onnx", "onnxruntime", "onnxruntime-qnn"))]
    return json.dumps(parts, sort_keys=True)


def emulate(
    jobs: Sequence[Job], target: Target, settings: CompileSettings, describe: str | None = None
) -> list[Answer]:
    """Compile and run every job for ``target``, all ops on HTP, nothing left to the CPU.

    Args:
        jobs: run one after the other in one child process; after a crash the rest goes to a new one.
        target: the chip.
        settings: level and options, those that ship: a level changes the arithmetic.
        describe: text of the progress line; None shows none.

    Returns:
        One answer a job, in their order.
    """
    answers: list[Answer] = []
    with tempfile.TemporaryDirectory(prefix="kokoro-emulate-") as scratch:
        places = [_write(job, Path(scratch), number) for number, job in enumerate(jobs)]
        while len(answers) < len(jobs):
            run = toolchain.run_worker(
                "emulate",
                {
                    "jobs": places[len(answers) :],
                    "provider_options": provider_options(target, settings),
                    "session_entries": {"session.disable_cpu_ep_fallback": "1"},
                },
                describe=describe,
                reserve_gib=settings.memory_reserve_gib,
            )
            answers += [answer for place in places[len(answers) :] if (answer := _read(place))]
            if len(answers) < len(jobs):
                # The first without an answer is the one at which the process died.
                answers.append(Answer({}, run.failure))
    return answers


def _write(job: Job, scratch: Path, number: int) -> dict[str, str]:
    model = job.model
    if isinstance(model, onnx.ModelProto):
        path = scratch / f"{number}.onnx"
        path.write_bytes(model.SerializeToString())
    else:
        path = model.resolve()
    feeds = scratch / f"{number}.feeds.npz"
    with open(feeds, "wb") as stream:
        np.savez(stream, allow_pickle=False, **job.feeds)
    return {"model": str(path), "feeds": str(feeds), "outputs": str(scratch / f"{number}.npz")}


def _read(place: dict[str, str]) -> Answer | None:
    outputs = Path(place["outputs"])
    error = outputs.with_suffix(".error")
    if error.is_file():
        return Answer({}, " ".join(error.read_text(encoding="utf-8").split()))
    if not outputs.is_file():
        return None
    with np.load(outputs) as values:
        return Answer(dict(values))


def agreement_db(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
    """SNR in dB of the output that agrees least, between -200 and 200 (equal); -200 for other shapes or no numbers."""
    worst = _EQUAL_DB
    for name, truth in expected.items():
        if truth.shape != given[name].shape or not np.isfinite(given[name]).all():
            return -_EQUAL_DB
        worst = min(worst, metrics.snr_db(truth.reshape(-1), given[name].reshape(-1)))
    return round(max(worst, -_EQUAL_DB), 3)
