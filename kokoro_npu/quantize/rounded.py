"""Weights that were rounded beforehand, as a file: integers and scales by the name of the ONNX initializer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from kokoro_npu.files import atomic
from kokoro_npu.runtime import Array

_SCALES = ":scales"


@dataclass(frozen=True)
class RoundedWeight:
    """One weight on its grid.

    Attributes:
        integers: int8 or int16, the shape of the weight, symmetric.
        scales: [output channels] float32.
    """

    integers: npt.NDArray[np.int8] | npt.NDArray[np.int16]
    scales: Array

    @property
    def bits(self) -> int:
        """8 or 16."""
        return self.integers.dtype.itemsize * 8

    def values(self, axis: int) -> Array:
        """The float weight that the integers stand for; ``axis`` counts output channels."""
        shape = [1] * self.integers.ndim
        shape[axis] = -1
        return self.integers.astype(np.float32) * self.scales.reshape(shape)


def save_rounded(weights: Mapping[str, RoundedWeight], path: Path) -> None:
    """Write weights, which may be none, as safetensors."""
    tensors: dict[str, npt.NDArray[Any]] = {name: weight.integers for name, weight in weights.items()}
    tensors |= {f"{name}{_SCALES}": weight.scales for name, weight in weights.items()}
    with atomic(path) as tmp:
        save_file({name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}, tmp)


def load_rounded(path: Path) -> dict[str, RoundedWeight]:
    """Read what :func:`save_rounded` wrote."""
    tensors = load_file(path)
    names = [name for name in tensors if not name.endswith(_SCALES)]
    return {name: RoundedWeight(tensors[name], tensors[f"{name}{_SCALES}"]) for name in names}
