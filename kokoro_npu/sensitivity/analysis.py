"""Trials: one part of a model quantized alone, and what that does to the sound.

The models are run by ONNX Runtime with all weights shared between the sessions of the trials; a trial gets its own few:
weights on their integer grid, or a pair of Q/DQ ops behind each activation of a module. What is quantized runs exactly
as it would in the whole quantized model.
"""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data
from tqdm import tqdm

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array
from kokoro_npu.graphs.reading import WEIGHT_INPUTS
from kokoro_npu.machine import THREADS
from kokoro_npu.quantize.rounded import round_to_nearest
from kokoro_npu.sensitivity.table import Trial, to_trial

ACTIVATION_OPS = ("InstanceNormalization", "Exp", "Cos", "Sin")
"""Operators whose modules are tried for their activations; of several in one module the first here stands for it."""

_SHARED_BYTES = 1024
_FORMAT = "%.6g"


@dataclass(frozen=True)
class Case:
    """What one trial quantizes.

    Attributes:
        node: name of the node that stands for it.
        op_type: of that node.
        weights: initializer name to the axis of its output channels.
        activations: tensor names.
        params: number of weights.
    """

    node: str
    op_type: str
    weights: Mapping[str, int]
    activations: tuple[str, ...]
    params: int


def weight_cases(model: onnx.ModelProto) -> list[Case]:
    """One case for each node that holds a matrix or a kernel of weights, in graph order."""
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    cases = []
    for node in model.graph.node:
        inputs = [node.input[i] for i in WEIGHT_INPUTS.get(node.op_type, ()) if i < len(node.input)]
        weights = {name: _output_axis(node) for name in inputs if len(shapes.get(name, ())) > 1}
        if weights:
            params = sum(int(np.prod(shapes[name])) for name in weights)
            cases.append(Case(node.name, node.op_type, weights, (), params))
    return cases


def activation_cases(model: onnx.ModelProto) -> list[Case]:
    """One case for each module with a norm, Snake, exponential or sine: every activation that its own ops touch.

    A module is what the node names before their last slash have in common.
    """
    constant = {t.name for t in model.graph.initializer} | {n.output[0] for n in model.graph.node if not n.input[:1]}
    fixed = constant | {value.name for value in (*model.graph.input, *model.graph.output)}
    modules: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        modules.setdefault(node.name.rpartition("/")[0], []).append(node)
    cases = []
    for nodes in modules.values():
        marked = [node for op in ACTIVATION_OPS for node in nodes if node.op_type == op]
        if marked:
            touched = [name for node in nodes for name in (*node.input, *node.output) if name and name not in fixed]
            cases.append(Case(marked[0].name, marked[0].op_type, {}, tuple(dict.fromkeys(touched)), 0))
    return cases


def _output_axis(node: onnx.NodeProto) -> int:
    """The axis of a weight that counts output channels, or that of a table's rows."""
    if node.op_type in ("ConvTranspose", "MatMul", "LSTM"):
        return 1
    if node.op_type == "Gemm":
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        return 0 if transposed else 1
    return 0


class Bench:
    """A model of which many variants are run, each with a few parts of its own.

    Args:
        model: float, weights inside; it is changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self._shared: dict[str, ort.OrtValue] = {}
        for tensor in model.graph.initializer:
            value = self._weights[tensor.name]
            if tensor.data_type == TensorProto.FLOAT and value.nbytes >= _SHARED_BYTES:
                self._shared[tensor.name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
                set_external_data(tensor, "shared", 0, value.nbytes)
                for field in ("raw_data", "float_data"):
                    tensor.ClearField(field)

    def ranges(self, names: Iterable[str], samples: Sequence[Mapping[str, Array]]) -> dict[str, tuple[float, float]]:
        """Smallest and largest value of some tensors over ``samples``, zero included."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        names = list(dict.fromkeys(names))
        outputs = []
        for number, name in enumerate(names):
            for kind in ("Min", "Max"):
                outputs.append(f"range{number}.{kind}")
                model.graph.node.append(helper.make_node(f"Reduce{kind}", [name], [outputs[-1]], keepdims=0))
                model.graph.output.append(helper.make_tensor_value_info(outputs[-1], TensorProto.FLOAT, []))
        session = self._session(model, {})
        rows = np.array([session.run(outputs, dict(sample)) for sample in samples]) if names else np.zeros((1, 0))
        lows, highs = np.minimum(rows.min(axis=0), 0)[::2], np.maximum(rows.max(axis=0), 0)[1::2]
        return {name: (float(low), float(high)) for name, low, high in zip(names, lows, highs, strict=True)}

    def session(
        self,
        case: Case | None = None,
        weight_bits: int = 8,
        activation_bits: int = 8,
        ranges: Mapping[str, tuple[float, float]] | None = None,
    ) -> ort.InferenceSession:
        """The float model, or one with ``case`` quantized.

        Args:
            case: what is quantized.
            weight_bits: symmetric, one scale an output channel, rounded to nearest.
            activation_bits: asymmetric, 8 (16 needs opset 21).
            ranges: of the case's activations.
        """
        model = self.model
        own: dict[str, Array] = {}
        if case is not None:
            own = {n: round_to_nearest(self._weights[n], a, weight_bits).values(a) for n, a in case.weights.items()}
            if case.activations or case.weights:
                model = onnx.ModelProto()
                model.CopyFrom(self.model)
                own = _of_node(model, case.node, own)
                _insert_qdq(model, {name: (ranges or {})[name] for name in case.activations}, activation_bits)
        return self._session(model, own)

    def _session(self, model: onnx.ModelProto, own: Mapping[str, Array]) -> ort.InferenceSession:
        ort.disable_telemetry_events()
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = THREADS
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        # ONNX Runtime drops initializers that nothing reads before it looks for the shared ones.
        read = {name for node in model.graph.node for name in node.input}
        shared = {name: value for name, value in self._shared.items() if name in read}
        options.add_external_initializers(list(shared), list(shared.values()))
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in own.items())
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _of_node(model: onnx.ModelProto, node_name: str, own: Mapping[str, Array]) -> dict[str, Array]:
    """Give one node its own copies of weights that other nodes may share."""
    node = next(node for node in model.graph.node if node.name == node_name)
    renamed = {name: f"{name}:trial" for name in own}
    for index, name in enumerate(node.input):
        node.input[index] = renamed.get(name, name)
    return {renamed[name]: value for name, value in own.items()}


def _insert_qdq(model: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], bits: int) -> None:
    """Put Q/DQ behind the tensors of ``ranges``, which all of their readers then see."""
    top = 2**bits - 1
    kind = np.dtype(f"uint{bits}")
    nodes = []
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name in ranges:
                node.input[index] = f"{name}:dequantized"
        nodes.append(node)
        for name in node.output:
            if name in ranges:
                low, high = ranges[name]
                scale = np.float32(max(high - low, 1e-12) / top)
                zero = np.array(np.clip(round(-low / scale), 0, top), kind)
                constants = [f"{name}:scale", f"{name}:zero"]
                for constant, value in zip(constants, (np.array(scale), zero), strict=True):
                    model.graph.initializer.append(numpy_helper.from_array(value, constant))
                nodes.append(helper.make_node("QuantizeLinear", [name, *constants], [f"{name}:quantized"]))
                nodes.append(
                    helper.make_node("DequantizeLinear", [f"{name}:quantized", *constants], [f"{name}:dequantized"])
                )
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copied)


def run_trials(
    cases: Sequence[tuple[Case, Callable[[], tuple[float, float]]]], partial: Path, identity: str
) -> list[Trial]:
    """Run what has not been run yet.

    Args:
        cases: each with what measures it: log-mel distance and SNR.
        partial: a CSV that grows by a row with each trial and is kept when the process is killed.
        identity: of the models and settings; rows of another identity are thrown away.

    Returns:
        All trials in the order of ``cases``.

    Raises:
        KokoroNpuError: two cases have the same name.
    """
    names = [case.node for case, _ in cases]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise KokoroNpuError(f"trials: {sorted(repeated)[0]} names two parts of the models")
    done = dict(_finished(partial, identity))
    partial.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, "a", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        for case, measure in tqdm(cases, desc="trials", unit="trial", initial=0):
            if case.node in done:
                continue
            mel, snr = measure()
            trial = Trial(
                case.node, case.op_type, float(_FORMAT % mel), float(_FORMAT % snr), case.params, 4 * case.params
            )
            done[case.node] = trial
            writer.writerow(astuple(trial))
            stream.flush()
            os.fsync(stream.fileno())
    return [done[name] for name in names]


def _finished(partial: Path, identity: str) -> Iterator[tuple[str, Trial]]:
    """Trials of an earlier, killed run; a last row that is not whole is dropped."""
    rows: list[list[str]] = []
    if partial.is_file():
        text = partial.read_text(encoding="utf-8")
        rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    kept = rows[1:] if rows and rows[0] == [identity] else []
    partial.parent.mkdir(parents=True, exist_ok=True)
    with open(partial, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([[identity], *kept])
    for row in kept:
        yield row[0], to_trial(row)


def summarize(trials: Sequence[Trial], floor: float, audible_snr_db: float) -> dict[str, object]:
    """A flat report: how many trials, the worst by each measure, and what the log-mel distance misses.

    A weight is missed if it hurts for its size (:attr:`Trial.snr_db_per_mb`) and yet moves the log-mel distance by less
    than another draw of the source's noise does, so that whoever listens to models that draw their own cannot see it.

    Args:
        trials: of all parts.
        floor: log-mel distance of another draw, :meth:`kokoro_npu.sensitivity.bench.TrialBench.floor`.
        audible_snr_db: SNR for a megabyte below which a weight hurts, as recipes are derived by.
    """
    hurting = sorted(
        (trial for trial in trials if trial.params and trial.snr_db_per_mb < audible_snr_db),
        key=lambda trial: trial.snr_db_per_mb,
    )
    return {
        "trials": len(trials),
        "weight_trials": sum(trial.params > 0 for trial in trials),
        "snr_db_min": min(trial.snr_db for trial in trials),
        "snr_db_min_name": min(trials, key=lambda trial: trial.snr_db).name,
        "mel_distance_max": max(trial.mel_distance for trial in trials),
        "mel_distance_max_name": max(trials, key=lambda trial: trial.mel_distance).name,
        "mel_distance_floor": float(_FORMAT % floor),
        "seen_by_mel": [trial.name for trial in hurting if trial.mel_distance >= floor],
        "missed_by_mel": [trial.name for trial in hurting if trial.mel_distance < floor],
    }
