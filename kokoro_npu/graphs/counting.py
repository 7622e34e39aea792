"""What an ONNX model is made of: nodes and bytes by operator, type or place."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.graphs.reading import (
    UNUSED,
    Constant,
    all_nodes,
    constants,
    external_files,
    op_name,
    read_graph,
    tensor_bytes,
    type_name,
)

OP, OP_DTYPE, NAME = "op", "op+dtype", "name"
GROUPINGS = (OP, OP_DTYPE, NAME)

_NO_TYPE = "?"


@dataclass(frozen=True)
class Row:
    """One group of nodes.

    Attributes:
        group: its name.
        nodes: how many nodes are of it.
        parameters: elements of the stored tensors that they use.
        bytes: of these tensors, as stored.
    """

    group: str
    nodes: int
    parameters: int
    bytes: int


def count(path: Path | str, by: str, depth: int = 2, prefix: str = "") -> list[Row]:
    """Count nodes and stored tensors of a model by group; weights in other files are counted, not read.

    A stored tensor belongs to the first node that computes with it, past nodes that only make another constant of it
    (`kokoro_npu.graphs.reading.constants`), and is counted once.

    Args:
        path: any ONNX file.
        by: ``op``; ``op+dtype``, where a tensor counts under its own type and a node under that of its largest
            tensor, or without one under that of its first output; ``name``: the first ``depth`` scopes of its name.
        depth: of ``name``, 1 or more.
        prefix: count only nodes whose name begins with it, and their tensors.

    Raises:
        KokoroNpuError: a bad file, an unknown ``by``, or no node whose name begins with ``prefix``.
    """
    if by not in GROUPINGS:
        raise KokoroNpuError(f"cannot count by {by!r}; {did_you_mean(by, GROUPINGS)}")
    model = read_graph(path)
    nodes = [(name, node) for name, node in all_nodes(model) if name.startswith(prefix)]
    if not nodes:
        scopes = {_scope(name, depth) for name, _ in all_nodes(model)}
        raise KokoroNpuError(f"{path}: no node's name begins with {prefix!r}; {did_you_mean(prefix, scopes)}")
    used = [
        constant
        for constant in constants(model)
        if (constant.consumers[0][0].startswith(prefix) if constant.consumers else not prefix)
    ]
    types = _node_types(model, used) if by == OP_DTYPE else {}

    def group(name: str, node: NodeProto, type_: str) -> str:
        if by == NAME:
            return _scope(name, depth)
        return f"{op_name(node)} ({type_})" if by == OP_DTYPE else op_name(node)

    counted = Counter(group(name, node, types.get(name, _NO_TYPE)) for name, node in nodes)
    parameters: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    for constant in used:
        type_ = type_name(constant.tensor.data_type)
        key = group(*constant.consumers[0][:2], type_) if constant.consumers else f"{UNUSED} ({type_})"
        parameters[key] += math.prod(constant.tensor.dims)
        stored[key] += tensor_bytes(constant.tensor)
    return [Row(key, counted[key], parameters[key], stored[key]) for key in sorted({*counted, *stored})]


def file_sizes(path: Path) -> dict[str, int | None]:
    """Bytes on disk of a model and of each weight file it refers to, by name; None for one that is not there."""
    files = [path, *(path.parent / name for name in external_files(read_graph(path)))]
    return {file.name: file.stat().st_size if file.is_file() else None for file in files}


def _scope(name: str, depth: int) -> str:
    """The first scopes of a node's name; a node that lies in none is its own."""
    parts = name.strip("/").split("/")
    scopes = parts[: min(depth, max(1, len(parts) - 1))]
    return ("/" if name.startswith("/") else "") + "/".join(scopes)


def _node_types(model: ModelProto, used: list[Constant]) -> dict[str, str]:
    """The type that a node is counted under: of its largest tensor, else of its first output."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except onnx.shape_inference.InferenceError:
        graph = model.graph  # the types that the file itself states
    outputs = {info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.output)}
    types = {
        name: type_name(outputs[node.output[0]])
        for name, node in all_nodes(model)
        if node.output and outputs.get(node.output[0])
    }
    largest: dict[str, int] = {}
    for constant in used:
        size = math.prod(constant.tensor.dims)
        for name, _, _ in constant.consumers:
            if size > largest.get(name, -1):
                largest[name] = size
                types[name] = type_name(constant.tensor.data_type)
    return types
