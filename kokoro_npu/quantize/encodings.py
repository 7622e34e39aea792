"""Encodings of activations: their file, and those of tensors that only hold copies of others.

A bucket may move its columns about in a way that the calibrated ones do not (:mod:`kokoro_npu.model.folding`), so that
the names of such tensors say nothing. Their ranges follow from what they are copied from; and with the same encoding on
both sides of a copy, nothing is rounded on the way.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData, load_tensors_data, save_tensors_data

COPIES = frozenset({"Concat", "Expand", "MaxPool", "Pad", "Reshape", "Slice", "Split", "Transpose", "Unsqueeze"})
"""Ops whose outputs hold elements of their inputs, or zeros; MaxPool, which chooses among them, as well."""

Ranges = dict[str, tuple[float, float]]
"""Tensor name to the smallest and the largest value that it holds."""


def with_copies(model: onnx.ModelProto, ranges: Ranges) -> Ranges:
    """``ranges`` with those of every copy in ``model``, and of its constant parts, replaced by its sources' union."""
    result = dict(ranges)
    values = {tensor.name: tensor for tensor in model.graph.initializer}
    values |= {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
    constants = {name: _extremes(onnx.numpy_helper.to_array(tensor)) for name, tensor in values.items()}
    for node in model.graph.node:
        if node.op_type not in COPIES:
            continue
        sources = copied(node)
        bounds = [bound for name in sources if (bound := constants.get(name) or result.get(name))]
        if len(bounds) == len(sources):
            # Zero is in every encoding anyway, so that a Pad adds nothing.
            union = (min(low for low, _ in bounds), max(high for _, high in bounds))
            # Numbers in the names of constants say nothing either: zeros that are joined to a mask.
            result.update(dict.fromkeys([*node.output, *(name for name in sources if name in constants)], union))
    return result


def _extremes(value: np.ndarray) -> tuple[float, float]:
    return float(value.min(initial=0)), float(value.max(initial=0))


def copied(node: onnx.NodeProto) -> Sequence[str]:
    """Tensors of which ``node``, one of ``COPIES``, holds elements; its other inputs are shapes and indices."""
    return node.input if node.op_type == "Concat" else node.input[:1]


def to_ranges(data: TensorsData) -> Ranges:
    """The ranges that ONNX Runtime's calibrator has measured."""
    ranges: Ranges = {}
    for name in data.keys():  # noqa: SIM118  # TensorsData is no mapping
        low, high = (float(np.asarray(bound).item()) for bound in data[name].range_value)
        ranges[name] = (low, high)
    return ranges


def load_ranges(path: Path) -> Ranges:
    """Read what :func:`save_ranges` has written."""
    return to_ranges(load_tensors_data(path))


def save_ranges(ranges: Ranges, path: Path) -> None:
    """Write encodings as JSON in the form of ONNX Runtime's calibration cache."""
    data = {name: tuple(np.float32(bound) for bound in ranges[name]) for name in sorted(ranges)}
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), path)
