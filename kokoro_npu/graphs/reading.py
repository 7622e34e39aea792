"""Any ONNX file: reading its graph, walking its nodes, and which nodes compute with which stored tensor."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs installed
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from kokoro_npu.errors import KokoroNpuError

WEIGHT_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gather": (0,),
    "Gemm": (0, 1),
    "LSTM": (1, 2),
    "MatMul": (0, 1),
}
"""Operators that hold trained matrices, and the inputs where these lie (a bias is none)."""

UNUSED = "(unused)"
"""Consumer of a constant that no node reads."""

_NIBBLE_TYPES = (TensorProto.INT4, TensorProto.UINT4)
_SHORT_TYPES = {"FLOAT": "FP32", "FLOAT16": "FP16", "DOUBLE": "FP64", "BFLOAT16": "BF16"}


def read_graph(path: Path | str) -> ModelProto:
    """Read a model without the weights that lie in other files.

    Raises:
        KokoroNpuError: the file is missing, unreadable, or no ONNX model.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError:
        raise KokoroNpuError(f"{path}: no such model; build it first (dvc repro)") from None
    except OSError as error:
        raise KokoroNpuError(f"{path}: cannot be read: {error.strerror}") from None
    except DecodeError as error:
        raise KokoroNpuError(f"{path}: not an ONNX model ({error})") from None
    if not model.graph.node:
        raise KokoroNpuError(f"{path}: not an ONNX model, or one without nodes")
    return model


def read_model(path: Path | str) -> ModelProto:
    """Read a model with all its weights.

    Raises:
        KokoroNpuError: as `read_graph`, or a weight file that is missing or too short.
    """
    model = read_graph(path)
    try:
        onnx.load_external_data_for_model(model, str(Path(path).parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise KokoroNpuError(f"{path}: its weights cannot be read: {error}") from None
    return model


def external_files(model: ModelProto) -> list[str]:
    """Names of the weight files that a model read by `read_graph` refers to, sorted."""
    locations = {
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    return sorted(locations)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Bodies of a control-flow node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _walk(nodes: list[NodeProto], prefix: str) -> Iterator[tuple[str, NodeProto]]:
    for index, node in enumerate(nodes):
        name = prefix + (node.name or f"{node.op_type}#{index}")
        yield name, node
        for graph in subgraphs(node):
            yield from _walk(list(graph.node), f"{name}/")


def all_nodes(model: ModelProto) -> Iterator[tuple[str, NodeProto]]:
    """Every node with its path, those of subgraphs (``outer/inner``) and model functions included."""
    yield from _walk(list(model.graph.node), "")
    for function in model.functions:
        yield from _walk(list(function.node), f"{function.name}/")


def op_name(node: NodeProto) -> str:
    """Op type, with its domain in front where that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def type_name(element_type: int) -> str:
    """``FP32``, ``INT8``, … of an ONNX element type."""
    name = TensorProto.DataType.Name(element_type)
    return _SHORT_TYPES.get(name, name)


def tensor_bytes(tensor: TensorProto) -> int:
    """Bytes of a tensor's values, from its shape and type; the values themselves are not read."""
    count = math.prod(tensor.dims)
    if tensor.data_type in _NIBBLE_TYPES:
        return (count + 1) // 2
    return count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


@dataclass(frozen=True)
class Constant:
    """One stored tensor and the node that uses it.

    Attributes:
        tensor: an initializer, or the value of a Constant node.
        consumers: (path, node, input) of every node that computes with it. Nodes that only make another constant of
            it, such as the DequantizeLinear of a weight, are passed through: the input is that of the node behind
            them. Empty where nothing reads it.
    """

    tensor: TensorProto
    consumers: tuple[tuple[str, NodeProto, int], ...]


def constants(model: ModelProto) -> list[Constant]:
    """Every stored tensor of a model with the nodes that compute with it.

    Tensors of equal name in different subgraphs are taken for one, as ONNX forbids them.
    """
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = list(all_nodes(model))
    users: dict[str, list[tuple[str, NodeProto, int]]] = {}
    for path, node in nodes:
        for graph in subgraphs(node):
            stored |= {tensor.name: tensor for tensor in graph.initializer}
        for index, name in enumerate(node.input):
            users.setdefault(name, []).append((path, node, index))
        if node.op_type == "Constant":
            stored.update((node.output[0], a.t) for a in node.attribute if a.type == AttributeProto.TENSOR)
    # In the order of the file, which ONNX demands to be topological: one pass finds what is computed of constants.
    fixed = set(stored)
    for _, node in nodes:
        inputs = [name for name in node.input if name]
        if inputs and all(name in fixed for name in inputs) and not any(subgraphs(node)):
            fixed.update(node.output)

    def consumers(name: str) -> Iterator[tuple[str, NodeProto, int]]:
        for path, node, index in users.get(name, []):
            if all(output in fixed for output in node.output):
                for output in node.output:
                    yield from consumers(output)
            else:
                yield path, node, index

    return [Constant(tensor, tuple(consumers(name))) for name, tensor in stored.items()]
