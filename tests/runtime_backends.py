"""Backends for the tests of kokoro_npu.runtimes.measure; other processes import this, so it imports little."""

from pathlib import Path

import numpy as np

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.host.steps import Array
from kokoro_npu.runtimes.measure import Backend, Run

BALLAST_BYTES = 100_000_000


def _open_doubling(path: Path, threads: int) -> Run:
    del threads
    ballast = np.ones(BALLAST_BYTES // 8)  # what a real decoder's weights would take
    bias = float(path.read_text(encoding="utf-8")) + ballast[0]

    def run(inputs: dict[str, Array]) -> Array:
        return inputs["x"] * 2 + np.float32(bias)

    return run


def _open_failing(path: Path, threads: int) -> Run:
    raise KokoroNpuError(f"{path.name} with {threads} threads")


DOUBLING = Backend(_open_doubling, ("numpy",))
FAILING = Backend(_open_failing, ())
