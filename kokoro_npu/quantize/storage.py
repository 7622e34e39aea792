"""Weights stored narrow and computed with in float32: int8 or fp16 initializers that ONNX Runtime unpacks once.

Each narrowed initializer is followed by the few standard nodes that restore it. They read constants alone, so that the
runtime folds them when it loads the model: the file is small, and what runs is the float model with rounded weights,
at its speed. DequantizeLinear would say the same but is not folded; it is repeated in every run.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from kokoro_npu.geometry import Array
from kokoro_npu.graphs.reading import constants
from kokoro_npu.quantize.weight_grid import channel_axes

INT8, FP16 = "int8", "fp16"

_TOP = 127
_CLIPS = (1.0, 0.98, 0.95, 0.9)
"""Parts of a channel's peak that are tried as its range; the one with the least squared error is taken."""

_SMALLEST_MATRIX = 1024
"""Elements; a smaller matrix would save less than its scales and nodes cost."""
_SMALLEST_HALF = 128
"""Elements of the smallest other tensor that is stored in half; below, its node outweighs the gain."""


def matrices(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """The float matrices that operators multiply by, weights inside the model.

    Returns:
        Name of the initializer to the axes of its channels (:func:`channel_axes`), on which all its readers agree.
    """
    found = {}
    for constant in constants(model):
        tensor = constant.tensor
        rank = len(tensor.dims)
        if tensor.data_type == TensorProto.FLOAT and rank > 1 and np.prod(tensor.dims) >= _SMALLEST_MATRIX:
            axes = {channel_axes(node, index, rank) for _, node, index in constant.consumers}
            if len(axes) == 1 and () not in axes:
                found[tensor.name] = axes.pop()
    return found


def narrow(model: ModelProto, store: str, rest: str) -> None:
    """Store weights narrow, in place.

    Args:
        model: with its weights inside; it is changed.
        store: width of the `matrices`: ``int8``, ``fp16``, or empty to treat them as the rest.
        rest: ``fp16`` to store all other float initializers of 128 elements or more in half precision, and the
            scales as well; empty to leave them.
    """
    graph = model.graph
    channels = matrices(model)
    unpack: list[NodeProto] = []
    stored: list[TensorProto] = []
    for tensor in graph.initializer:
        matrix = tensor.name in channels
        width = store or rest if matrix else rest
        if tensor.data_type != TensorProto.FLOAT or not width or not (matrix or np.prod(tensor.dims) >= _SMALLEST_HALF):
            stored.append(tensor)
        elif width == FP16:
            name = f"{tensor.name}_fp16"
            stored.append(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), name))
            unpack.append(_node("Cast", [name], tensor.name, to=TensorProto.FLOAT))
        else:
            tensors, nodes = _int8(tensor, channels[tensor.name], half=rest == FP16)
            stored.extend(tensors)
            unpack.extend(nodes)
    nodes = [*unpack, *graph.node]
    for field, values in (("node", nodes), ("initializer", stored)):
        kept = [type(value).FromString(value.SerializeToString()) for value in values]
        graph.ClearField(field)
        getattr(graph, field).extend(kept)


def _int8(tensor: TensorProto, axes: tuple[int, ...], half: bool) -> tuple[list[TensorProto], list[NodeProto]]:
    """The integers and scales that replace a matrix, and the nodes that multiply them."""
    name = tensor.name
    levels, scale = round_int8(numpy_helper.to_array(tensor), axes, half)
    tensors = [numpy_helper.from_array(levels, f"{name}_int8"), numpy_helper.from_array(scale, f"{name}_scale")]
    nodes = [_node("Cast", [f"{name}_int8"], f"{name}_levels", to=TensorProto.FLOAT)]
    factor = f"{name}_scale"
    if half:
        factor = f"{name}_factor"
        nodes.append(_node("Cast", [f"{name}_scale"], factor, to=TensorProto.FLOAT))
    return tensors, [*nodes, _node("Mul", [f"{name}_levels", factor], name)]


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    # Without a name: those of a thousand such nodes would be a tenth of the file.
    return helper.make_node(op, inputs, [output], **attributes)


def round_int8(
    value: Array, axes: tuple[int, ...], half: bool
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32] | npt.NDArray[np.float16]]:
    """Round to symmetric int8, with the scale a channel that leaves the least squared error of a short list.

    Args:
        value: the weight.
        axes: of its channels.
        half: whether the scales are fp16, and the levels those of the rounded scales.

    Returns:
        The levels, -127 to 127, and the scales, of size 1 along all axes but those of the channels.
    """
    others = tuple(axis for axis in range(value.ndim) if axis not in axes)
    peak = np.abs(value).max(axis=others, keepdims=True)
    best_scale = np.zeros_like(peak)
    best_error = np.full_like(peak, np.inf)
    for clip in _CLIPS:
        scale = np.maximum(peak * np.float32(clip) / _TOP, np.finfo(np.float32).tiny)
        if half:
            scale = np.maximum(scale, np.finfo(np.float16).tiny).astype(np.float16).astype(np.float32)
        error = np.square(_levels(value, scale) * scale - value).sum(axis=others, keepdims=True)
        better = error < best_error
        best_scale, best_error = np.where(better, scale, best_scale), np.where(better, error, best_error)
    levels = _levels(value, best_scale).astype(np.int8)
    return levels, best_scale.astype(np.float16) if half else best_scale.astype(np.float32)


def _levels(value: Array, scale: Array) -> Array:
    levels: Array = np.clip(np.rint(value / scale), -_TOP, _TOP)
    return levels
