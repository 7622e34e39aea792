"""Encodings and a decoder to a quantized decoder."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.quantize.encodings import load_ranges, save_ranges, with_copies
from kokoro_npu.quantize.overrides import weighted_nodes
from kokoro_npu.quantize.recipe import Recipe
from kokoro_npu.quantize.split_weights import SplitWeights, split_weights
from kokoro_npu.quantize.weight_grid import channel_axes

_ACTIVATION_TYPES = {8: QuantType.QUInt8, 16: QuantType.QUInt16}
"""Unsigned, asymmetric."""
_WEIGHT_TYPES = {8: QuantType.QInt8, 16: QuantType.QInt16}
"""Signed, symmetric, as HTP wants them."""

_TensorOverrides = dict[str, list[dict[str, Any]]]
"""Tensor name to what ONNX Runtime's quantizer does otherwise with it."""


def quantize_decoder(model: onnx.ModelProto, recipe: Recipe, encodings_path: Path) -> onnx.ModelProto:
    """Quantize a decoder with encodings that were measured on another bucket.

    Args:
        model: the float decoder, weights inside; it is changed.
        recipe: the precision.
        encodings_path: tensor name to range, written by :func:`kokoro_npu.quantize.calibrate`.

    Returns:
        The QDQ model (opset 21, which 16-bit QDQ needs), or the half-precision model for fp16; weights inside.

    Raises:
        KokoroNpuError: a tensor has no encoding, or the recipe does not fit the model.
    """
    quantized = _to_half(model) if recipe.float else _to_qdq(model, recipe, encodings_path)
    quantized.graph.name = model.graph.name
    quantized.producer_name = model.producer_name
    quantized.doc_string = ""
    del quantized.metadata_props[:]
    return quantized


def _to_qdq(model: onnx.ModelProto, recipe: Recipe, encodings_path: Path) -> onnx.ModelProto:
    split = split_weights(model, recipe.node_precisions(model), load_ranges(encodings_path))
    float_nodes = [name for name, precision in split.precisions.items() if precision.float]
    activation_type, weight_type = _ACTIVATION_TYPES[recipe.activation_bits], _WEIGHT_TYPES[recipe.weight_bits]
    # The exporter has simplified the model: what this entry claims is true, and silences a warning a bucket.
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    config = get_qnn_qdq_config(
        model,
        None,  # no inputs to calibrate on: the encodings exist
        activation_type=activation_type,
        weight_type=weight_type,
        per_channel=recipe.per_channel,
        nodes_to_exclude=float_nodes or None,
        init_overrides=_tensor_overrides(model, recipe, split),
        # An op has one type for inputs and output: where groups of different bits meet, conversions stand between.
        add_qtype_converts=True,
    )
    with tempfile.TemporaryDirectory(prefix="kokoro-quantize-") as directory, _quiet_expected_warnings():
        path, ranges_path = Path(directory) / "quantized.onnx", Path(directory) / "encodings.json"
        save_ranges(with_copies(model, split.ranges), ranges_path)
        try:
            quantize_static(
                model,
                path,
                None,
                quant_format=QuantFormat.QDQ,
                activation_type=activation_type,
                weight_type=weight_type,
                op_types_to_quantize=sorted(config.op_types_to_quantize),
                nodes_to_exclude=float_nodes,
                per_channel=recipe.per_channel,
                calibrate_method=CalibrationMethod.MinMax,
                # Standard Q/DQ ops: the model is raised to opset 21, where they know 16 bits.
                extra_options={**config.extra_options, "UseQDQContribOps": False},
                calibration_cache_path=ranges_path,
            )
        except ValueError as error:
            raise KokoroNpuError(
                f"quantize {model.graph.name}: {error}; the encodings in {encodings_path} were measured on another "
                "decoder, run the stage `calibrate` again"
            ) from error
        return onnx.load(path)


def _tensor_overrides(model: onnx.ModelProto, recipe: Recipe, split: SplitWeights) -> _TensorOverrides:
    """Types and scales of the weights, and types of the activations, that differ from the preset's."""
    overrides: _TensorOverrides = {}
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    for node in weighted_nodes(model):
        name, precision = node.input[1], split.precisions[node.name]
        kind = {"quant_type": _WEIGHT_TYPES[precision.weights]}
        (axis,) = channel_axes(node, 1, ranks[name])
        if precision.float:
            continue
        if weight := split.weights.get(name):
            zero = np.zeros((), weight.integers.dtype)
            scales = weight.scales.ravel()
            overrides[name] = [kind | {"axis": axis, "scale": scale, "zero_point": zero} for scale in scales]
        elif precision.weights != recipe.weight_bits:
            overrides[name] = [kind | {"symmetric": True} | ({"axis": axis} if recipe.per_channel else {})]
    for node in model.graph.node:
        precision = split.precisions[node.name]
        if precision.activations != recipe.activation_bits and not precision.float:
            kind = {"quant_type": _ACTIVATION_TYPES[precision.activations]}
            overrides |= {output: [kind] for output in node.output}
    return overrides


_EXPECTED_WARNINGS = (
    # 16 bits need opset 21, and the quantizer raises the model to it.
    "original model opset version",
    # The instance norms' zero biases are constants, not initializers, and stay float.
    "to be an initializer",
)


@contextmanager
def _quiet_expected_warnings() -> Iterator[None]:
    """Drop what ONNX Runtime's quantizer says of every bucket and we know."""
    root = logging.getLogger()

    def keep(record: logging.LogRecord) -> bool:
        return not any(text in record.getMessage() for text in _EXPECTED_WARNINGS)

    root.addFilter(keep)
    try:
        yield
    finally:
        root.removeFilter(keep)


def _to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    # Imported here: it pulls in onnxruntime.transformers, which only this precision needs.
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)
