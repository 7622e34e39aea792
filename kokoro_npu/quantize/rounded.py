"""Weights rounded to nearest on a symmetric grid."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kokoro_npu.host.steps import Array


@dataclass(frozen=True)
class RoundedWeight:
    """One weight on its grid.

    Attributes:
        integers: int8 or int16, the shape of the weight, symmetric.
        scales: [output channels] float32.
    """

    integers: npt.NDArray[np.int8] | npt.NDArray[np.int16]
    scales: Array

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
