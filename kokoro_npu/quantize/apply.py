"""Encodings and a decoder to a quantized decoder."""

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, quantize_static
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.quantize.encodings import complete
from kokoro_npu.quantize.overrides import Settings, weighted_nodes
from kokoro_npu.quantize.recipe import Recipe, activation_type, weight_type
from kokoro_npu.quantize.rounded import RoundedWeight, channel_axis
from kokoro_npu.quantize.split_weights import LOW, SUM, halve, halved_nodes

_Overrides = dict[str, list[dict[str, Any]]]
"""Tensor name to what ONNX Runtime's quantizer does otherwise with it."""


class _NoSamples(CalibrationDataReader):
    """The config builder wants a reader, which is never read: the encodings exist."""

    def get_next(self) -> None:
        return None


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
    quantized = _to_half(model) if recipe.is_float else _to_qdq(model, recipe, encodings_path)
    quantized.graph.name = model.graph.name
    quantized.producer_name = model.producer_name
    quantized.doc_string = ""
    del quantized.metadata_props[:]
    return quantized


def _to_qdq(model: onnx.ModelProto, recipe: Recipe, encodings_path: Path) -> onnx.ModelProto:
    settings = recipe.settings(model)
    halved = halved_nodes(model, settings)
    halves, ranges = halve(model, halved)
    for name in halved:
        settings[name] = replace(settings[name], weights=8)
        settings |= dict.fromkeys((name + LOW, name + SUM), settings[name])
    float_nodes = [name for name, one in settings.items() if one.float]
    overrides = _weight_overrides(model, recipe, settings, halves) | _activation_overrides(model, recipe, settings)
    # The exporter has simplified the model: what this entry claims is true, and silences a warning a bucket.
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    config = get_qnn_qdq_config(
        model,
        _NoSamples(),
        activation_type=recipe.activation_type,
        weight_type=recipe.weight_type,
        per_channel=recipe.per_channel,
        nodes_to_exclude=float_nodes or None,
        init_overrides=overrides,
        # An op has one type for inputs and output: where groups of different bits meet, conversions stand between.
        add_qtype_converts=True,
    )
    with tempfile.TemporaryDirectory(prefix="kokoro-quantize-") as directory, _quiet_expected_warnings():
        path = Path(directory) / "quantized.onnx"
        completed = Path(directory) / "encodings.json"
        complete(model, encodings_path, completed, ranges)
        try:
            quantize_static(
                model,
                path,
                None,
                quant_format=QuantFormat.QDQ,
                activation_type=recipe.activation_type,
                weight_type=recipe.weight_type,
                op_types_to_quantize=sorted(config.op_types_to_quantize),
                nodes_to_exclude=float_nodes,
                per_channel=recipe.per_channel,
                calibrate_method=CalibrationMethod.MinMax,  # ranges, whatever has measured them
                # Standard Q/DQ ops: the model is raised to opset 21, where they know 16 bits.
                extra_options={**config.extra_options, "UseQDQContribOps": False},
                calibration_cache_path=completed,
            )
        except ValueError as error:
            raise KokoroNpuError(
                f"quantize {model.graph.name}: {error}; the encodings in {encodings_path} were measured on another "
                "decoder, run the stage `calibrate` again"
            ) from error
        return onnx.load(path)


def _weight_overrides(
    model: onnx.ModelProto,
    recipe: Recipe,
    settings: Mapping[str, Settings],
    halves: Mapping[str, RoundedWeight],
) -> _Overrides:
    """Types and scales of the weights that differ from the preset's; puts the halves' values into ``model``."""
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    overrides: _Overrides = {}
    for node in weighted_nodes(model):
        name, one = node.input[1], settings[node.name]
        if one.float:
            continue
        kind: dict[str, Any] = {"quant_type": weight_type(one.weights)}
        axis = channel_axis(node.op_type)
        if name in halves:
            initializers[name].CopyFrom(onnx.numpy_helper.from_array(halves[name].values(axis), name))
            zero = np.zeros((), halves[name].integers.dtype)
            overrides[name] = [kind | {"axis": axis, "scale": s, "zero_point": zero} for s in halves[name].scales]
        elif one.weights != recipe.weight_bits:
            overrides[name] = [kind | {"symmetric": True} | ({"axis": axis} if recipe.per_channel else {})]
    return overrides


def _activation_overrides(model: onnx.ModelProto, recipe: Recipe, settings: Mapping[str, Settings]) -> _Overrides:
    return {
        output: [{"quant_type": activation_type(settings[node.name].activations)}]
        for node in model.graph.node
        for output in node.output
        if settings[node.name].activations != recipe.activation_bits and not settings[node.name].float
    }


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
