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


_LEAST_PEAK = 1e-12
"""Of a channel of zeros, whose scale must not be zero."""


def channel_axis(kind: str) -> int:
    """The axis of a convolution's weight that counts its output channels; ``kind`` is its ONNX op or torch class."""
    return 1 if kind.startswith("ConvTranspose") else 0


def channel_scales(weight: Array, axis: int, bits: int) -> Array:
    """[channels] float32: the steps of a symmetric grid that make each channel's peak the top level."""
    others = tuple(dim for dim in range(weight.ndim) if dim != axis)
    return (np.maximum(np.abs(weight).max(axis=others), _LEAST_PEAK) / (2 ** (bits - 1) - 1)).astype(np.float32)


def round_to_nearest(weight: Array, axis: int, bits: int, scales: Array | None = None) -> RoundedWeight:
    """A weight on a symmetric grid of ``bits``; unless given, the scales are those of :func:`channel_scales`."""
    top = 2 ** (bits - 1) - 1
    if scales is None:
        scales = channel_scales(weight, axis, bits)
    shape = [1] * weight.ndim
    shape[axis] = -1
    levels = np.clip(np.round(weight / scales.reshape(shape)), -top, top)
    return RoundedWeight(levels.astype(np.int8) if bits == 8 else levels.astype(np.int16), scales)


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
