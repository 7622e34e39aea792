"""How large a model becomes when each node takes the width that the sensitivity table and thresholds allow."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import NodeProto, TensorProto

from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.graphs.reading import all_nodes, constants, external_files, read_graph, tensor_bytes
from kokoro_npu.quantize.storage import FP16, INT8
from kokoro_npu.quantize.weight_grid import channel_axes
from kokoro_npu.sensitivity.table import Sensitivity

AS_STORED = "as stored"
WIDTHS = (INT8, FP16, AS_STORED)
"""From the narrowest to the widest."""

_SCALE_BYTES = 4


@dataclass(frozen=True)
class SizeThresholds:
    """Which nodes are narrowed.

    Attributes:
        int8: a node whose log-mel distance is at most this becomes int8; negative: none.
        fp16: of the others, one whose distance is at most this becomes fp16; negative: none.
        min_snr_db: only a node with at least this SNR becomes int8. The log-mel distance does not hear everything.
        exclude: a regular expression; nodes whose name it finds do not become int8.
    """

    int8: float
    fp16: float = -1.0
    min_snr_db: float = -math.inf
    exclude: str = ""


@dataclass(frozen=True)
class SizeEstimate:
    """Sizes of one or more models, in bytes.

    Attributes:
        before: of the files as they are.
        after: of the files, as estimated.
        nodes: width to the nodes of the table that take it.
        weights: width to (bytes before, bytes after) of the weights that take it; those of no node of the table count
            as stored.
    """

    before: int
    after: int
    nodes: dict[str, int]
    weights: dict[str, tuple[int, int]]


def choose(row: Sensitivity, thresholds: SizeThresholds) -> str:
    """The width that the thresholds give a node. A distance that is not a number passes no threshold."""
    excluded = bool(thresholds.exclude) and re.search(thresholds.exclude, row.name) is not None
    if 0 <= row.mel_distance <= thresholds.int8 and row.snr_db >= thresholds.min_snr_db and not excluded:
        return INT8
    return FP16 if 0 <= row.mel_distance <= thresholds.fp16 else AS_STORED


def estimate_size(
    models: Sequence[Path | str], table: Mapping[str, Sensitivity], thresholds: SizeThresholds
) -> SizeEstimate:
    """Estimate the bytes of models whose nodes are narrowed.

    A weight that several nodes share (ALBERT's layer serves twelve times) takes the widest precision that any of them
    needs, and is counted once; so is a weight file that several models share. int8 narrows matrices
    (:func:`channel_axes`) and adds a float scale a channel; fp16 halves all float tensors of the node.

    Raises:
        KokoroNpuError: a bad model or expression, or the table of other models.
    """
    try:
        re.compile(thresholds.exclude)
    except re.error as error:
        raise KokoroNpuError(f"{thresholds.exclude!r} is not a regular expression: {error}") from None
    chosen = {name: choose(row, thresholds) for name, row in table.items()}
    paths = [Path(path) for path in models]
    graphs = [read_graph(path) for path in paths]
    names = {name for graph in graphs for name, _ in all_nodes(graph)}
    if strangers := [name for name in chosen if name not in names]:
        raise KokoroNpuError(
            f"{strangers[0]} of the table is no node of {', '.join(path.name for path in paths)}; "
            f"{did_you_mean(strangers[0], names)} Give all models that were analyzed"
        )
    shared: set[tuple[Path, str, int]] = set()
    weights: dict[str, tuple[int, int]] = dict.fromkeys(WIDTHS, (0, 0))
    for path, graph in zip(paths, graphs, strict=True):
        for constant in constants(graph):
            tensor = constant.tensor
            if (place := _place(path, tensor)) in shared:
                continue
            if place:
                shared.add(place)
            width, scales = AS_STORED, 0
            if tensor.data_type == TensorProto.FLOAT:
                wanted = [_narrowed(chosen.get(name), node, at, tensor) for name, node, at in constant.consumers]
                width, scales = max(wanted, key=lambda want: WIDTHS.index(want[0]), default=(AS_STORED, 0))
            size = tensor_bytes(tensor)
            then = {INT8: size // 4 + _SCALE_BYTES * scales, FP16: size // 2}.get(width, size)
            old = weights[width]
            weights[width] = (old[0] + size, old[1] + then)
    files = {path.parent / name for path, graph in zip(paths, graphs, strict=True) for name in external_files(graph)}
    if absent := sorted(str(file) for file in files if not file.is_file()):
        raise KokoroNpuError(f"{absent[0]}: the weights of {', '.join(path.name for path in paths)} are missing")
    before = sum(path.stat().st_size for path in [*paths, *files])
    after = before - sum(old - new for old, new in weights.values())
    return SizeEstimate(before, after, dict(Counter(chosen.values())), weights)


def _place(path: Path, tensor: TensorProto) -> tuple[Path, str, int] | None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return (path.parent, entries["location"], int(entries.get("offset", 0))) if "location" in entries else None


def _narrowed(width: str | None, node: NodeProto, index: int, tensor: TensorProto) -> tuple[str, int]:
    """The width that a node leaves one of its float tensors, and the scales that int8 needs."""
    axes = channel_axes(node, index, len(tensor.dims))
    if width is None or (width == INT8 and (not axes or len(tensor.dims) < 2)):
        return AS_STORED, 0  # biases and the like stay as they are
    return width, math.prod(tensor.dims[axis] for axis in axes)
