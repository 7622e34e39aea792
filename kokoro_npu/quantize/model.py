"""Encodings and a decoder to a quantized decoder."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.quantize.recipe import Recipe


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
        KokoroNpuError: a tensor to quantize has no encoding.
    """
    quantized = _to_half(model) if recipe.is_float else _to_qdq(model, recipe, encodings_path)
    quantized.graph.name = model.graph.name
    quantized.producer_name = model.producer_name
    quantized.doc_string = ""
    del quantized.metadata_props[:]
    return quantized


def _to_qdq(model: onnx.ModelProto, recipe: Recipe, encodings_path: Path) -> onnx.ModelProto:
    float_nodes = recipe.float_nodes(model)
    # The exporter has simplified the model: what this entry claims is true, and silences a warning a bucket.
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    config = get_qnn_qdq_config(
        model,
        _NoSamples(),
        activation_type=recipe.activation_type,
        weight_type=recipe.weight_type,
        per_channel=recipe.per_channel,
        nodes_to_exclude=float_nodes or None,
    )
    with tempfile.TemporaryDirectory(prefix="kokoro-quantize-") as directory, _quiet_expected_warnings():
        path = Path(directory) / "quantized.onnx"
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
                calibrate_method=recipe.method,
                # Standard Q/DQ ops: the model is raised to opset 21, where they know 16 bits.
                extra_options={**config.extra_options, "UseQDQContribOps": False},
                calibration_cache_path=encodings_path,
            )
        except ValueError as error:
            raise KokoroNpuError(
                f"quantize {model.graph.name}: {error}; the encodings in {encodings_path} were measured on another "
                "decoder, run the stage `calibrate` again"
            ) from error
        return onnx.load(path)


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
