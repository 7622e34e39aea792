"""What a graph alone tells: blocking ops, dynamic dimensions, and every op against a table of those that QNN takes."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.reading import all_nodes, op_name, read_graph

FULL, PARTIAL, BLOCKED, NOT_LISTED = "full", "partial", "blocked", "not listed"

Verdict = tuple[str, str]
"""Status (``full``, ``partial``, ``blocked`` or ``not listed``) and where it stands."""

_NAMED = 5
"""So many of one fault are named in a message."""


@dataclass(frozen=True)
class GraphAudit:
    """Verdict on one ONNX file.

    Attributes:
        ops: nodes by their op type (with its domain in front where that is not ONNX's own), subgraphs and functions
            included.
        blocking: (node name, op) of every node of a blocked kind; a node in a subgraph is named
            ``outer/inner``.
        dynamic: tensors that have a dimension without a number, or no known shape.
    """

    ops: Counter[str]
    blocking: tuple[tuple[str, str], ...]
    dynamic: tuple[str, ...]


def op_table(path: Path) -> dict[str, Verdict]:
    """Op to verdict, from a CSV of the columns ``op``, ``status`` (``full``, ``partial``, ``blocked``) and ``source``.

    ``data/op_table.csv`` is the table of operators that teams who ship on QNN go by, and the kin of its blocked ops.

    Raises:
        KokoroNpuError: the file is missing, or a row has another status.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise KokoroNpuError(f"{path}: no such op table; see audit.op_table") from None
    table: dict[str, Verdict] = {}
    for row in csv.DictReader(lines):
        op, status, source = (row.get(key) or "" for key in ("op", "status", "source"))
        if not op or status not in (FULL, PARTIAL, BLOCKED):
            raise KokoroNpuError(f"{path}: row {op!r} has status {status!r}; it must be full, partial or blocked")
        table[op] = (status, source)
    return table


def audit_graph(path: Path, table: Mapping[str, Verdict]) -> GraphAudit:
    """Audit one ONNX file; its weights are not read.

    Args:
        path: the model.
        table: verdicts by op, see :func:`op_table`.

    Raises:
        KokoroNpuError: the file is missing or no ONNX model.
    """
    model = read_graph(path)
    nodes = list(all_nodes(model))
    blocking = tuple((name, node.op_type) for name, node in nodes if verdict(node.op_type, table)[0] == BLOCKED)
    try:
        dynamic = _dynamic(model)
    except onnx.shape_inference.InferenceError as error:
        raise KokoroNpuError(f"{path}: shape inference fails: {error}") from None
    return GraphAudit(Counter(op_name(node) for _, node in nodes), blocking, dynamic)


def verdict(op: str, table: Mapping[str, Verdict]) -> Verdict:
    """The table's verdict on an op type."""
    # The table writes GELU where ONNX writes Gelu.
    return table.get(op) or table.get(op.upper()) or (NOT_LISTED, "")


def _dynamic(model: ModelProto) -> tuple[str, ...]:
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [info.name for info in graph.input if info.name not in constants]
    static = {
        info.name
        for info in (*graph.value_info, *graph.input, *graph.output)
        if info.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim)
    }
    names = dict.fromkeys([*inputs, *(name for node in graph.node for name in node.output if name)])
    return tuple(name for name in names if name not in static)


def require_npu_ready(audit: GraphAudit, path: Path) -> None:
    """Stop at ops that no NPU compile survives.

    Raises:
        KokoroNpuError: a blocking op, with node and op, or a dynamic dimension, with the tensor.
    """
    if audit.blocking:
        nodes = _first([f"{name} ({op})" for name, op in audit.blocking])
        raise KokoroNpuError(f"{path}: blocking op at node {nodes}; remove it from the decoder")
    if audit.dynamic:
        raise KokoroNpuError(
            f"{path}: dimensions that are no integers at {_first(audit.dynamic)}; export with static shapes"
        )


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
