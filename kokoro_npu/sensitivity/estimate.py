"""How large a model becomes when each node takes the width that its trial and the thresholds allow."""

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import NodeProto, TensorProto

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.reading import WEIGHT_INPUTS, all_nodes, constants, external_files, read_graph, tensor_bytes
from kokoro_npu.sensitivity.table import Trial

INT8, FP16, AS_STORED = "int8", "fp16", "as stored"
PRECISIONS = (INT8, FP16, AS_STORED)

_SCALE_BYTES = 4


@dataclass(frozen=True)
class Thresholds:
    """Which nodes are narrowed.

    Attributes:
        quant: a node whose log-mel distance is at most this becomes int8; negative: none.
        fp16: of the others, one whose distance is at most this becomes fp16; negative: none.
        min_snr_db: only a node with at least this SNR becomes int8. The log-mel distance does not hear everything.
        exclude: a regular expression; nodes whose name it finds do not become int8.
    """

    quant: float
    fp16: float = -1.0
    min_snr_db: float = -math.inf
    exclude: str = ""


@dataclass(frozen=True)
class Estimate:
    """Sizes of one or more models, in bytes.

    Attributes:
        before: of the files as they are.
        after: of the files, as estimated.
        nodes: precision to the trial nodes that take it.
        weights: precision to (bytes before, bytes after) of the weights that take it; those without a trial count as
            stored.
    """

    before: int
    after: int
    nodes: dict[str, int]
    weights: dict[str, tuple[int, int]]


def choose(trial: Trial, thresholds: Thresholds) -> str:
    """The precision that the thresholds give a node. A distance that is not a number passes no threshold."""
    excluded = bool(thresholds.exclude) and re.search(thresholds.exclude, trial.name) is not None
    if 0 <= trial.mel_distance <= thresholds.quant and trial.snr_db >= thresholds.min_snr_db and not excluded:
        return INT8
    return FP16 if 0 <= trial.mel_distance <= thresholds.fp16 else AS_STORED


def estimate_size(
    models: Sequence[Path | str], trials: Mapping[str, Trial], thresholds: Thresholds, per_channel: bool = True
) -> Estimate:
    """Estimate the bytes of models whose trial nodes are narrowed.

    A weight that several nodes share (ALBERT's layer serves twelve times) takes the widest precision that any of them
    needs, and is counted once; so is a weight file that several models share. int8 narrows the matrices of
    `WEIGHT_INPUTS` and adds a float scale a channel, or one a tensor; fp16 halves all float tensors of the node.

    Raises:
        KokoroNpuError: a bad model or expression, or trials of other models.
    """
    try:
        re.compile(thresholds.exclude)
    except re.error as error:
        raise KokoroNpuError(f"{thresholds.exclude!r} is not a regular expression: {error}") from None
    chosen = {name: choose(trial, thresholds) for name, trial in trials.items()}
    paths = [Path(path) for path in models]
    graphs = [read_graph(path) for path in paths]
    names = {name for graph in graphs for name, _ in all_nodes(graph)}
    if strangers := [name for name in chosen if name not in names]:
        near = difflib.get_close_matches(strangers[0], names, n=1)
        hint = f"; {near[0]} is near" if near else ""
        raise KokoroNpuError(
            f"the trial of {strangers[0]} is of no node of {', '.join(path.name for path in paths)}{hint}: give the "
            "models that were tried"
        )
    shared: set[tuple[Path, str, int]] = set()
    weights: dict[str, tuple[int, int]] = dict.fromkeys(PRECISIONS, (0, 0))
    before = 0
    for path, graph in zip(paths, graphs, strict=True):
        before += path.stat().st_size
        for constant in constants(graph):
            tensor = constant.tensor
            if (place := _place(path, tensor)) in shared:
                continue
            if place:
                shared.add(place)
            size = tensor_bytes(tensor)
            wanted = [_narrowed(chosen.get(name), node, at, tensor) for name, node, at in constant.consumers]
            precision = max(wanted, key=PRECISIONS.index, default=AS_STORED)
            then = _bytes_at(precision, tensor, size, per_channel)
            old = weights[precision]
            weights[precision] = (old[0] + size, old[1] + then)
    for file in {
        path.parent / name for path, graph in zip(paths, graphs, strict=True) for name in external_files(graph)
    }:
        if not file.is_file():
            raise KokoroNpuError(f"{file}: the weights of {', '.join(p.name for p in paths)} are missing")
        before += file.stat().st_size
    after = before - sum(old - new for old, new in weights.values())
    return Estimate(before, after, dict(Counter(chosen.values())), weights)


def _place(path: Path, tensor: TensorProto) -> tuple[Path, str, int] | None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return (path.parent, entries["location"], int(entries.get("offset", 0))) if "location" in entries else None


def _narrowed(precision: str | None, node: NodeProto, index: int, tensor: TensorProto) -> str:
    if precision is None or tensor.data_type != TensorProto.FLOAT:
        return AS_STORED
    if precision == INT8 and (index not in WEIGHT_INPUTS.get(node.op_type, ()) or len(tensor.dims) < 2):
        return AS_STORED  # biases and the like stay as they are
    return precision


def _bytes_at(precision: str, tensor: TensorProto, size: int, per_channel: bool) -> int:
    if precision == INT8:
        # One scale a row of the larger of the outer sizes is an upper bound: layouts differ by operator.
        scales = max(tensor.dims[0], tensor.dims[-1] if len(tensor.dims) == 2 else 1) if per_channel else 1
        return math.prod(tensor.dims) + _SCALE_BYTES * scales
    return size // 2 if precision == FP16 else size
