"""A decoder on a runtime, in a process of its own: its audio, its time beside others', its memory."""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from tqdm import tqdm

from kokoro_npu.geometry import Array
from kokoro_npu.machine import peak_rss_bytes

# The processes import this module: nothing that takes memory may be imported here.

Run = Callable[[dict[str, Array]], Array]
"""A decoder: inputs by name to audio [1, 600 T]."""


@dataclass(frozen=True)
class Loader:
    """How a runtime loads a decoder's file.

    Attributes:
        load: path and threads to a decoder; a function of a module, because another process calls it.
        libraries: modules that ``load`` uses, imported before memory is counted.
    """

    load: Callable[[Path, int], Run]
    libraries: tuple[str, ...]


def _load_onnx(path: Path, threads: int) -> Run:
    from kokoro_npu.graphs.sessions import cpu_session

    session = cpu_session(path, threads)
    return lambda inputs: session.run(None, inputs)[0]


ONNXRUNTIME = Loader(_load_onnx, ("kokoro_npu.graphs.sessions",))
"""ONNX Runtime CPU, by whose times the others' are divided."""

REFERENCE = "onnx"
"""Prefix of ONNX Runtime's own figures."""


class Engine(ProcessPoolExecutor):
    """A decoder in its own process, so that its peak memory is its own and its threads die with it.

    Calling it runs the decoder, sets ``seconds`` to the time of that run, and counts samples that are no numbers in
    ``nan_samples``. Leaving it as a context manager ends the process.

    Args:
        loader: what loads the decoder.
        path: of the decoder.
        threads: of the runtime.

    Raises:
        KokoroNpuError: whatever the loader raises.
    """

    def __init__(self, loader: Loader, path: Path, threads: int) -> None:
        super().__init__(max_workers=1, mp_context=multiprocessing.get_context("spawn"))
        self.seconds = 0.0
        self.nan_samples = 0
        self.submit(_load, loader, path, threads).result()

    def __call__(self, inputs: dict[str, Array]) -> Array:
        """Run once: inputs by name to audio [1, 600 T]."""
        audio, self.seconds = self.submit(_run, inputs).result()
        self.nan_samples += int(np.isnan(audio).sum())
        return audio

    def memory_bytes(self) -> int:
        """Peak resident memory since just before the decoder was loaded: what loading and running it took."""
        return self.submit(_memory).result()


def take_turns(engines: Mapping[str, Engine], inputs: Sequence[dict[str, Array]], runs: int) -> dict[str, float]:
    """Median seconds of a run by engine, over ``runs`` runs of each, which go round the inputs.

    The engines take turns, so that whatever else the machine does slows all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for run in tqdm(range(runs), desc="take turns", unit="run"):
        for name, engine in engines.items():
            engine(inputs[run % len(inputs)])
            seconds[name].append(engine.seconds)
    return {name: median(times) for name, times in seconds.items()}


def kinds(names: Iterable[str]) -> str:
    """How often each kind of op occurs, as one text for a flat report: ``add 3, conv 2``."""
    return ", ".join(f"{name} {count}" for name, count in sorted(Counter(names).items()))


_decoder: Run | None = None
_rss_before = 0


def _load(loader: Loader, path: Path, threads: int) -> None:
    global _decoder, _rss_before
    for library in loader.libraries:
        import_module(library)
    _rss_before = psutil.Process().memory_info().rss
    _decoder = loader.load(path, threads)


def _run(inputs: dict[str, Array]) -> tuple[Array, float]:
    assert _decoder is not None
    start = time.perf_counter()
    audio = _decoder(inputs)
    return audio, time.perf_counter() - start


def _memory() -> int:
    return max(peak_rss_bytes() - _rss_before, 0)
