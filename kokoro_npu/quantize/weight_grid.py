"""Weights on a symmetric grid: which of their axes count output channels, and rounding to nearest."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from kokoro_npu.geometry import Array
from kokoro_npu.graphs.reading import WEIGHT_INPUTS

_LEAST_PEAK = 1e-12
"""Of a channel of zeros, whose scale must not be zero."""


@dataclass(frozen=True)
class RoundedWeight:
    """One weight on its grid.

    Attributes:
        integers: int8 or int16, the shape of the weight, symmetric.
        scales: float32, one a channel, of size 1 along all other axes.
    """

    integers: npt.NDArray[np.int8] | npt.NDArray[np.int16]
    scales: Array

    @property
    def values(self) -> Array:
        """The float32 weight that the integers stand for."""
        return self.integers.astype(np.float32) * self.scales


def channel_axes(node: NodeProto, index: int, rank: int) -> tuple[int, ...]:
    """Axes of a weight that count output channels, or the rows of a table.

    Each channel has a scale of its own. An LSTM's weights [directions, 4 hidden, inputs] have two such axes: a row of
    gates is a channel of its direction.

    Args:
        node: what computes with the weight.
        index: of the node's inputs, where the weight is.
        rank: of the weight.

    Returns:
        The axes; none where that input is no weight.
    """
    if index not in WEIGHT_INPUTS.get(node.op_type, ()):
        return ()
    if node.op_type == "LSTM":
        return (0, 1)
    if node.op_type == "ConvTranspose":
        return (1,)
    if node.op_type in ("Gemm", "MatMul") and index == 1:
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        return (0,) if transposed else (rank - 1,)
    return (0,)


def round_to_nearest(weight: Array, axes: tuple[int, ...], bits: int, scales: Array | None = None) -> RoundedWeight:
    """Round a weight to a symmetric grid.

    Args:
        weight: float32.
        axes: of its channels.
        bits: of the integers, at most 16.
        scales: as in :class:`RoundedWeight`; by default each channel's peak is the top level.
    """
    top = 2 ** (bits - 1) - 1
    if scales is None:
        others = tuple(axis for axis in range(weight.ndim) if axis not in axes)
        peaks = np.maximum(np.abs(weight).max(axis=others, keepdims=True), _LEAST_PEAK)
        scales = (peaks / top).astype(np.float32)
    levels = np.clip(np.round(weight / scales), -top, top)
    return RoundedWeight(levels.astype(np.int8) if bits == 8 else levels.astype(np.int16), scales)
