"""What a graph alone tells: blocking ops, dynamic dimensions, and every op against seed 0's table."""

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.reading import all_nodes, op_name, read_graph

FULL, PARTIAL, BLOCKED, NOT_LISTED = "full", "partial", "blocked", "not listed"

_QDQ = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class OpRow:
    """One kind of op of a graph.

    Attributes:
        op: ONNX op type, with its domain in front where that is not ONNX's own.
        count: nodes of this kind, subgraphs and functions included.
        status: seed 0's verdict: ``full``, ``partial``, ``blocked`` or ``not listed``.
        source: where the verdict stands.
    """

    op: str
    count: int
    status: str
    source: str


@dataclass(frozen=True)
class GraphAudit:
    """Verdict on one ONNX file.

    Attributes:
        nodes: nodes of the graph, subgraphs and functions included.
        ops: op histogram with verdicts, by name.
        blocking: (node name, op) of every node of a blocked kind; a node in a subgraph is named
            ``outer/inner``.
        dynamic: tensors that have a dimension without a number, or no known shape.
    """

    nodes: int
    ops: tuple[OpRow, ...]
    blocking: tuple[tuple[str, str], ...]
    dynamic: tuple[str, ...]


OP_TABLE = Path(__file__).parent / "data" / "op_table.csv"
"""Seed 0's appendix, and the kin of its blocked ops that it does not name."""


def op_table(path: Path | str = OP_TABLE) -> dict[str, tuple[str, str]]:
    """Op to (status, source), from a CSV with the columns ``op``, ``status`` and ``source``.

    A status is ``full``, ``partial`` or ``blocked``.

    Raises:
        KokoroNpuError: the file is missing, or a row has another status.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise KokoroNpuError(f"{path}: no such op table; see audit.op_table") from None
    table: dict[str, tuple[str, str]] = {}
    for row in csv.DictReader(lines):
        op, status, source = (row.get(key) or "" for key in ("op", "status", "source"))
        if not op or status not in (FULL, PARTIAL, BLOCKED):
            raise KokoroNpuError(f"{path}: row {op!r} has status {status!r}; it must be full, partial or blocked")
        table[op] = (status, source)
    return table


def _status(node: NodeProto, table: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    # Seed 0 writes GELU where ONNX writes Gelu.
    found = table.get(node.op_type) or table.get(node.op_type.upper())
    return found or (NOT_LISTED, "")


def _dynamic(model: ModelProto) -> tuple[str, ...]:
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for node in typed.graph.node:
        # The quantizer may write its 16-bit Q/DQ in Microsoft's domain, through which onnx infers no shape.
        if node.op_type in _QDQ:
            node.domain = ""
    graph = onnx.shape_inference.infer_shapes(typed, data_prop=True).graph
    constants = {tensor.name for tensor in graph.initializer}
    infos = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    produced = [name for node in graph.node for name in node.output if name]
    names = dict.fromkeys([info.name for info in graph.input if info.name not in constants] + produced)
    found = []
    for name in names:
        info = infos.get(name)
        known = info is not None and info.type.tensor_type.HasField("shape")
        if not known or any(not dim.HasField("dim_value") for dim in infos[name].type.tensor_type.shape.dim):
            found.append(name)
    return tuple(found)


def audit_graph(path: Path | str, table: Mapping[str, tuple[str, str]] | None = None) -> GraphAudit:
    """Audit one ONNX file; its weights are not read.

    Args:
        path: the model.
        table: verdicts by op, :func:`op_table` of this package by default.

    Raises:
        KokoroNpuError: the file is missing or no ONNX model.
    """
    model = read_graph(path)
    table = op_table() if table is None else table
    nodes = list(all_nodes(model))
    counts = Counter(op_name(node) for _, node in nodes)
    kinds = {op_name(node): _status(node, table) for _, node in nodes}
    rows = [OpRow(op, count, *kinds[op]) for op, count in counts.items()]
    blocking = tuple((name, node.op_type) for name, node in nodes if _status(node, table)[0] == BLOCKED)
    try:
        dynamic = _dynamic(model)
    except onnx.shape_inference.InferenceError as error:
        raise KokoroNpuError(f"{path}: shape inference fails: {error}") from None
    return GraphAudit(len(nodes), tuple(sorted(rows, key=lambda r: r.op)), blocking, dynamic)


def require_npu_ready(audit: GraphAudit, path: Path | str) -> None:
    """Stop at ops that no NPU compile survives.

    Raises:
        KokoroNpuError: a blocking op, with node and op, or a dynamic dimension, with the tensor.
    """
    if audit.blocking:
        named = ", ".join(f"{name} ({op})" for name, op in audit.blocking[:5])
        more = f" and {len(audit.blocking) - 5} more" if len(audit.blocking) > 5 else ""
        raise KokoroNpuError(f"{path}: blocking op at node {named}{more}; remove it from the decoder")
    if audit.dynamic:
        named = ", ".join(audit.dynamic[:5])
        more = f" and {len(audit.dynamic) - 5} more" if len(audit.dynamic) > 5 else ""
        raise KokoroNpuError(f"{path}: dimensions that are no integers at {named}{more}; export with static shapes")
