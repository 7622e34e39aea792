"""The parts of a model, one of them quantized at a time, and the table of what that does to the sound.

The models are run by ONNX Runtime with all weights shared between the sessions; a session gets its own few: weights on
their integer grid, or a pair of Q/DQ ops behind each activation of a module. What is quantized runs exactly as it would
in the whole quantized model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data
from tqdm import tqdm

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, write_json
from kokoro_npu.graphs.reading import WEIGHT_INPUTS
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.quantize.encodings import Ranges
from kokoro_npu.quantize.weight_grid import channel_axes, round_to_nearest
from kokoro_npu.sensitivity.table import Sensitivity

ACTIVATION_OPS = ("InstanceNormalization", "Exp", "Cos", "Sin")
"""Operators whose modules are parts by their activations; of several in one module the first here stands for it."""

_SHARED_BYTES = 1024
_FORMAT = "%.6g"


@dataclass(frozen=True)
class Part:
    """What is quantized alone.

    Attributes:
        node: name of the node that stands for it.
        op_type: of that node.
        weights: initializer name to the axes of its channels.
        activations: tensor names.
        params: number of weights.
    """

    node: str
    op_type: str
    weights: Mapping[str, tuple[int, ...]]
    activations: tuple[str, ...]
    params: int


def weight_parts(model: onnx.ModelProto) -> list[Part]:
    """One part for each node that holds a matrix or a kernel of weights, in graph order."""
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    parts = []
    for node in model.graph.node:
        weights = {
            node.input[i]: channel_axes(node, i, len(shapes[node.input[i]]))
            for i in WEIGHT_INPUTS.get(node.op_type, ())
            if i < len(node.input) and len(shapes.get(node.input[i], ())) > 1
        }
        if weights:
            params = sum(int(np.prod(shapes[name])) for name in weights)
            parts.append(Part(node.name, node.op_type, weights, (), params))
    return parts


def activation_parts(model: onnx.ModelProto) -> list[Part]:
    """One part for each module with a norm, Snake, exponential or sine: every activation that its own ops touch.

    A module is what the node names before their last slash have in common.
    """
    constant = {t.name for t in model.graph.initializer} | {n.output[0] for n in model.graph.node if not n.input[:1]}
    fixed = constant | {value.name for value in (*model.graph.input, *model.graph.output)}
    modules: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        modules.setdefault(node.name.rpartition("/")[0], []).append(node)
    parts = []
    for nodes in modules.values():
        marked = [node for op in ACTIVATION_OPS for node in nodes if node.op_type == op]
        if marked:
            touched = [name for node in nodes for name in (*node.input, *node.output) if name and name not in fixed]
            parts.append(Part(marked[0].name, marked[0].op_type, {}, tuple(dict.fromkeys(touched)), 0))
    return parts


class PartQuantizer:
    """A model that is run with one part quantized, whichever is asked for.

    Args:
        model: float, weights inside.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = _copied(model)
        self._weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self._shared: dict[str, ort.OrtValue] = {}
        for tensor in self._model.graph.initializer:
            value = self._weights[tensor.name]
            if tensor.data_type == TensorProto.FLOAT and value.nbytes >= _SHARED_BYTES:
                self._shared[tensor.name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
                set_external_data(tensor, "shared", 0, value.nbytes)
                for field in ("raw_data", "float_data"):
                    tensor.ClearField(field)

    def float_session(self) -> ort.InferenceSession:
        """The model with nothing quantized."""
        return self._session(self._model)

    def session(self, part: Part, weight_bits: int, ranges: Ranges) -> ort.InferenceSession:
        """The model with one part quantized.

        Args:
            part: its weights become symmetric, its activations asymmetric of 8 bits.
            weight_bits: of integers rounded to nearest, with a scale a channel.
            ranges: of the part's activations.
        """
        model = _copied(self._model)
        # Copies of its own, of weights that other nodes may share.
        node = next(node for node in model.graph.node if node.name == part.node)
        for index, name in enumerate(node.input):
            if name in part.weights:
                value = round_to_nearest(self._weights[name], part.weights[name], weight_bits).values
                node.input[index] = f"{name}:quantized"
                model.graph.initializer.append(numpy_helper.from_array(value, node.input[index]))
        _insert_qdq(model, {name: ranges[name] for name in part.activations})
        return self._session(model)

    def _session(self, model: onnx.ModelProto) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        # ONNX Runtime drops initializers that nothing reads before it looks for the shared ones.
        read = {name for node in model.graph.node for name in node.input}
        shared = {name: value for name, value in self._shared.items() if name in read}
        options.add_external_initializers(list(shared), list(shared.values()))
        return cpu_session(model.SerializeToString(), options=options)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _insert_qdq(model: onnx.ModelProto, ranges: Ranges) -> None:
    """Put Q/DQ of 8 bits behind the tensors of ``ranges``, which all of their readers then see."""
    top = np.iinfo(np.uint8).max
    nodes = []
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name in ranges:
                node.input[index] = f"{name}:dequantized"
        nodes.append(node)
        for name in node.output:
            if name in ranges:
                low, high = min(ranges[name][0], 0.0), max(ranges[name][1], 0.0)
                scale = np.float32(max(high - low, 1e-12) / top)
                zero = np.array(np.clip(round(-low / scale), 0, top), np.uint8)
                constants = [f"{name}:scale", f"{name}:zero"]
                model.graph.initializer.append(numpy_helper.from_array(np.array(scale), constants[0]))
                model.graph.initializer.append(numpy_helper.from_array(zero, constants[1]))
                nodes.append(helper.make_node("QuantizeLinear", [name, *constants], [f"{name}:quantized"]))
                nodes.append(
                    helper.make_node("DequantizeLinear", [f"{name}:quantized", *constants], [f"{name}:dequantized"])
                )
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copied)


def analyze(
    parts: Sequence[tuple[Part, Callable[[], tuple[float, float]]]], partial: Path, identity: str
) -> list[Sensitivity]:
    """Measure what has not been measured yet.

    Args:
        parts: each with what measures it: log-mel distance and SNR.
        partial: JSON that grows by a row with each part, and is kept when the process is killed.
        identity: of the models and settings; rows of another identity are thrown away.

    Returns:
        The sensitivity to every part, in the order of ``parts``.

    Raises:
        KokoroNpuError: two parts have the same name.
    """
    names = [part.node for part, _ in parts]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise KokoroNpuError(f"sensitivity: {sorted(repeated)[0]} names two parts of the models")
    kept = read_json(partial) if partial.is_file() else {}
    rows = [Sensitivity(*row) for row in kept["rows"]] if kept.get("identity") == identity else []
    done = {row.name: row for row in rows}
    for part, measure in tqdm(parts, desc="sensitivity", unit="part"):
        if part.node not in done:
            mel, snr = (float(_FORMAT % figure) for figure in measure())
            done[part.node] = Sensitivity(part.node, part.op_type, mel, snr, part.params, 4 * part.params)
            write_json(partial, {"identity": identity, "rows": [astuple(row) for row in done.values()]})
    return [done[name] for name in names]


def summarize(table: Sequence[Sensitivity], floor: float, audible_snr_db: float) -> dict[str, object]:
    """A flat report: how many parts, the worst by each measure, and what the log-mel distance misses.

    A weight is missed if it hurts for its size (:attr:`Sensitivity.snr_db_per_mb`) and yet moves the log-mel distance
    by less than another draw of the source's noise does, so that whoever listens to models that draw their own cannot
    see it.

    Args:
        table: of all parts.
        floor: log-mel distance of another draw, :meth:`kokoro_npu.sensitivity.bench.Bench.floor`.
        audible_snr_db: SNR for a megabyte below which a weight hurts, as recipes are derived by.
    """
    hurting = sorted(
        (row for row in table if row.params and row.snr_db_per_mb < audible_snr_db), key=lambda row: row.snr_db_per_mb
    )
    loudest, farthest = min(table, key=lambda row: row.snr_db), max(table, key=lambda row: row.mel_distance)
    return {
        "parts": len(table),
        "weight_parts": sum(row.params > 0 for row in table),
        "snr_db_min": loudest.snr_db,
        "snr_db_min_name": loudest.name,
        "mel_distance_max": farthest.mel_distance,
        "mel_distance_max_name": farthest.name,
        "mel_distance_floor": float(_FORMAT % floor),
        "seen_by_mel": [row.name for row in hurting if row.mel_distance >= floor],
        "missed_by_mel": [row.name for row in hurting if row.mel_distance < floor],
    }
