"""What a graph costs, counted from its shapes: multiply-accumulates, weight bytes, activation bytes."""

import math
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from kokoro_npu.graphs.reading import tensor_bytes

_GIGA = 1e9


@dataclass(frozen=True)
class Cost:
    """Counts of one static graph.

    Attributes:
        gmacs: multiply-accumulates of convolutions and matrix products, in 1e9.
        weight_bytes: bytes of the initializers as stored.
        activation_bytes: bytes of all tensors that nodes write, Q/DQ pairs counted by their quantized side.
    """

    gmacs: float
    weight_bytes: int
    activation_bytes: int


def count(path: Path | str) -> Cost:
    """Count a model whose dimensions are all integers; its external weights are not read."""
    return count_model(onnx.load(str(path), load_external_data=False))


def count_model(model: onnx.ModelProto) -> Cost:
    """Count a model in memory; see :func:`count`."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    types: dict[str, int] = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        types[value.name] = value.type.tensor_type.elem_type
    # The float side of a Q/DQ pair is never stored: it is fused into the op that writes or reads it.
    quantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    activations = sum(
        math.prod(shapes[name]) * helper.tensor_dtype_to_np_dtype(types[name]).itemsize
        for node in graph.node
        if node.op_type not in ("DequantizeLinear", "Constant")
        for name in node.output
        if name not in quantized and types.get(name)
    )
    macs = sum(_macs(node, shapes) for node in graph.node)
    return Cost(round(macs / _GIGA, 6), sum(map(tensor_bytes, graph.initializer)), activations)


def _macs(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    if node.op_type == "Conv":
        weight = shapes[node.input[1]]
        return math.prod(shapes[node.output[0]]) * math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        weight = shapes[node.input[1]]
        return math.prod(shapes[node.input[0]]) * math.prod(weight[1:])
    if node.op_type in ("MatMul", "Gemm"):
        inner = shapes[node.input[0]]
        transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
        return math.prod(shapes[node.output[0]]) * inner[-2 if transposed else -1]
    return 0
