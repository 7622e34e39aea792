"""Loaders for the tests of kokoro_npu.runtimes.measure; other processes import this, so it imports little."""

from pathlib import Path

import numpy as np

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array
from kokoro_npu.runtimes.measure import Loader, Run

BALLAST_BYTES = 100_000_000


def _load_doubling(path: Path, threads: int) -> Run:
    del threads
    ballast = np.ones(BALLAST_BYTES // 8)  # what a real decoder's weights would take
    bias = float(path.read_text(encoding="utf-8")) + ballast[0]

    def run(inputs: dict[str, Array]) -> Array:
        return inputs["x"] * 2 + np.float32(bias)

    return run


def _load_failing(path: Path, threads: int) -> Run:
    raise KokoroNpuError(f"{path.name} with {threads} threads")


DOUBLING = Loader(_load_doubling, ("numpy",))
FAILING = Loader(_load_failing, ())
