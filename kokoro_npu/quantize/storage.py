"""Weights stored narrow and computed with in float32: int8, int4 or fp16 initializers that ONNX Runtime unpacks once.

Each narrowed initializer is followed by the few standard nodes that restore it. They read constants alone, so that the
runtime folds them when it loads the model: the file is small, and what runs is the float model with rounded weights,
at its speed. DequantizeLinear would say the same but is not folded; it is repeated in every run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from kokoro_npu.graphs.reading import WEIGHT_INPUTS, Constant, constants

INT8, INT4, FP16 = "int8", "int4", "fp16"

_BLOCK = 32
"""Values of an int4 weight that share a scale."""

_LEVELS = {INT8: 127, INT4: 7}
_CLIPS = {INT8: (1.0, 0.98, 0.95, 0.9), INT4: (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)}
"""Parts of a channel's peak that are tried as its range; the one with the least squared error is taken."""

_FEWEST = 128
"""Values of the smallest float tensor, matrices aside, that is stored in half; below, its node outweighs the gain."""

_NIBBLE = 16

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Matrix:
    """A stored float matrix and the axis of its channels, each of which gets a scale of its own.

    Attributes:
        tensor: the initializer.
        node: name of the first node that computes with it.
        axes: the channel's axes; two for an LSTM, whose directions are stacked.
    """

    tensor: TensorProto
    node: str
    axes: tuple[int, ...]


def matrices(model: ModelProto, smallest: int = 1024) -> list[Matrix]:
    """The float initializers that operators of `WEIGHT_INPUTS` multiply by, of at least ``smallest`` elements.

    Args:
        model: with its weights inside.
        smallest: a smaller matrix would save less than its scales and nodes cost.
    """
    found = []
    for constant in constants(model):
        tensor = constant.tensor
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2 or np.prod(tensor.dims) < smallest:
            continue
        if axes := _channel_axes(constant):
            found.append(Matrix(tensor, constant.consumers[0][0], axes))
    return found


def _channel_axes(constant: Constant) -> tuple[int, ...]:
    """Axes of the output channels, the same for all consumers; none where it is not a weight."""
    found = {_axes_at(node, index, len(constant.tensor.dims)) for _, node, index in constant.consumers}
    return found.pop() if len(found) == 1 else ()


def _axes_at(node: NodeProto, index: int, rank: int) -> tuple[int, ...]:
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


def narrow(model: ModelProto, widths: Mapping[str, str], rest: str = "") -> None:
    """Store weights narrow, in place.

    Args:
        model: with its weights inside; it is changed.
        widths: node of a `Matrix` to ``int8``, ``int4`` or ``fp16``; matrices that it does not name are left to
            ``rest``.
        rest: ``fp16`` to store all other float initializers of `_FEWEST` elements in half precision, and the
            scales as well; empty to leave them.
    """
    graph = model.graph
    named = {matrix.tensor.name: matrix for matrix in matrices(model)}
    half = rest == FP16
    unpack: list[NodeProto] = []
    stored: list[TensorProto] = []
    for tensor in graph.initializer:
        matrix = named.get(tensor.name)
        width = widths.get(matrix.node, rest) if matrix else rest
        if tensor.data_type != TensorProto.FLOAT or not width or (matrix is None and np.prod(tensor.dims) < _FEWEST):
            stored.append(tensor)
            continue
        packed, nodes = _packed(tensor, matrix, width, half)
        stored.extend(packed)
        unpack.extend(nodes)
    nodes = [*unpack, *graph.node]
    for field, values in (("node", nodes), ("initializer", stored)):
        kept = [type(value).FromString(value.SerializeToString()) for value in values]
        graph.ClearField(field)
        getattr(graph, field).extend(kept)


def _packed(
    tensor: TensorProto, matrix: Matrix | None, width: str, half: bool
) -> tuple[list[TensorProto], list[NodeProto]]:
    """The initializers that replace a tensor, and the nodes that make it of them."""
    name = tensor.name
    value = numpy_helper.to_array(tensor)
    if width == FP16 or matrix is None:
        return (
            [numpy_helper.from_array(to_half(value), f"{name}_fp16")],
            [_node("Cast", [f"{name}_fp16"], name, to=TensorProto.FLOAT)],
        )
    if width == INT8:
        levels, scale = rounded(value, matrix.axes, INT8, half)
        return _scaled(name, [numpy_helper.from_array(levels.astype(np.int8), f"{name}_int8")], [], scale, None)
    return _packed_int4(name, value, matrix.axes)


def _packed_int4(name: str, value: Weights, axes: tuple[int, ...]) -> tuple[list[TensorProto], list[NodeProto]]:
    """Two values a byte, the first half of a channel's blocks in the low nibbles; one fp16 scale a block."""
    moved = np.moveaxis(value, axes, range(len(axes)))
    channels = int(np.prod(moved.shape[: len(axes)]))
    rows = moved.reshape(channels, -1)
    width = rows.shape[1]
    padded = -(-width // (2 * _BLOCK)) * 2 * _BLOCK
    blocks = np.pad(rows, ((0, 0), (0, padded - width))).reshape(channels, -1, _BLOCK)
    levels, scale = rounded(blocks, (0, 1), INT4, half=True)
    nibbles = (levels + _NIBBLE // 2).astype(np.uint8).reshape(channels, 2, padded // 2)
    packed = nibbles[:, 0] + _NIBBLE * nibbles[:, 1]
    inverse = np.argsort([*axes, *(axis for axis in range(value.ndim) if axis not in axes)])
    constants_ = {
        "int4": packed,
        "sixteen": np.array(_NIBBLE, np.float32),
        "eight": np.array(_NIBBLE // 2, np.float32),
        "blocked": np.array(blocks.shape, np.int64),
        "rows": np.array([channels, padded], np.int64),
        "from": np.array([0], np.int64),
        "to": np.array([width], np.int64),
        "axis": np.array([1], np.int64),
        "shape": np.array(moved.shape, np.int64),
    }
    initializers = [numpy_helper.from_array(array, f"{name}_{key}") for key, array in constants_.items()]
    steps = [
        _node("Cast", [f"{name}_int4"], f"{name}_bytes", to=TensorProto.FLOAT),
        _node("Div", [f"{name}_bytes", f"{name}_sixteen"], f"{name}_shifted"),
        _node("Floor", [f"{name}_shifted"], f"{name}_high"),
        _node("Mul", [f"{name}_high", f"{name}_sixteen"], f"{name}_masked"),
        _node("Sub", [f"{name}_bytes", f"{name}_masked"], f"{name}_low"),
        _node("Concat", [f"{name}_low", f"{name}_high"], f"{name}_unsigned", axis=1),
        _node("Sub", [f"{name}_unsigned", f"{name}_eight"], f"{name}_signed"),
        _node("Reshape", [f"{name}_signed", f"{name}_blocked"], f"{name}_levels"),
    ]
    last = [
        _node("Reshape", [f"{name}_scaled", f"{name}_rows"], f"{name}_joined"),
        _node("Slice", [f"{name}_joined", f"{name}_from", f"{name}_to", f"{name}_axis"], f"{name}_cut"),
        _node("Reshape", [f"{name}_cut", f"{name}_shape"], f"{name}_moved"),
        _node("Transpose", [f"{name}_moved"], name, perm=[int(axis) for axis in inverse]),
    ]
    tensors, nodes = _scaled(name, initializers, steps, scale, f"{name}_scaled")
    return tensors, [*nodes, *last]


def _scaled(
    name: str, tensors: list[TensorProto], steps: list[NodeProto], scale: npt.NDArray, output: str | None
) -> tuple[list[TensorProto], list[NodeProto]]:
    """Levels times their scale: the last steps of both integer formats. int8 starts with its Cast."""
    nodes = list(steps)
    if not steps:
        nodes.append(_node("Cast", [tensors[0].name], f"{name}_levels", to=TensorProto.FLOAT))
    factor = f"{name}_scale"
    if scale.dtype == np.float16:
        nodes.append(_node("Cast", [f"{name}_scale"], f"{name}_factor", to=TensorProto.FLOAT))
        factor = f"{name}_factor"
    nodes.append(_node("Mul", [f"{name}_levels", factor], output or name))
    return [*tensors, numpy_helper.from_array(scale, f"{name}_scale")], nodes


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    # Without a name: those of a thousand such nodes would be a tenth of the file.
    return helper.make_node(op, inputs, [output], **attributes)


def rounded(
    value: Weights, axes: tuple[int, ...], width: str, half: bool = False
) -> tuple[npt.NDArray[np.float32], npt.NDArray]:
    """Round to symmetric integer levels with one scale a channel.

    Args:
        value: the weight.
        axes: of its channels.
        width: ``int8`` or ``int4``.
        half: whether the scales are fp16, and the levels those of the rounded scales.

    Returns:
        The levels, whole numbers from -127 to 127 or -7 to 7, and the scales, broadcastable to ``value``: of each
        channel the one in a short list that leaves the least squared error.
    """
    others = tuple(axis for axis in range(value.ndim) if axis not in axes)
    peak = np.abs(value).max(axis=others, keepdims=True)
    top = _LEVELS[width]
    best_scale = np.zeros_like(peak)
    best_error = np.full_like(peak, np.inf)
    for clip in _CLIPS[width]:
        scale = np.maximum(peak * np.float32(clip) / top, np.finfo(np.float32).tiny)
        if half:
            scale = np.maximum(scale, np.finfo(np.float16).tiny).astype(np.float16).astype(np.float32)
        levels = np.clip(np.rint(value / scale), -top, top)
        error = np.square(levels * scale - value).sum(axis=others, keepdims=True)
        better = error < best_error
        best_scale, best_error = np.where(better, scale, best_scale), np.where(better, error, best_error)
    levels = np.clip(np.rint(value / best_scale), -top, top)
    return levels, best_scale.astype(np.float16 if half else np.float32)


def to_half(value: Weights) -> npt.NDArray[np.float16]:
    """Half precision; a value beyond its range would become infinite and is refused.

    Raises:
        ValueError: such a value.
    """
    if np.abs(value).max(initial=0) > np.finfo(np.float16).max:
        raise ValueError("a weight exceeds the range of half precision")
    return value.astype(np.float16)


def widths_of(model: ModelProto, width: str) -> dict[str, str]:
    """Every matrix of a model at one width, as `narrow` takes it."""
    return {matrix.node: width for matrix in matrices(model)}
