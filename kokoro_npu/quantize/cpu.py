"""Quantization of the CPU models (duration and prosody): integer arithmetic where it pays, narrow storage elsewhere.

Three ways to the same bytes, which differ in time and in error:

* float: the weight is narrow in the file and float32 in memory (`kokoro_npu.quantize.storage`), so that any CPU runs it
  as fast as float;
* dynamic: products and LSTMs compute in int8, with a range that each input gets when it arrives;
* static: products and convolutions compute in uint8, with ranges that were measured on the corpus beforehand.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnx import ModelProto
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

from kokoro_npu.quantize.calibrate import measure
from kokoro_npu.quantize.encodings import Ranges, save_ranges
from kokoro_npu.quantize.storage import narrow

FLOAT, DYNAMIC, STATIC = "float", "dynamic", "static"

_DYNAMIC_OPS = ("LSTM", "MatMul")
"""A Gemm becomes a MatMul."""
_STATIC_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def quantize_cpu(
    model: ModelProto, arithmetic: str, store: str, rest: str, samples: Iterable[Mapping[str, npt.NDArray]] = ()
) -> ModelProto:
    """Narrow a CPU model.

    Args:
        model: with its weights inside; it may be changed.
        arithmetic: ``float``, ``dynamic`` or ``static``.
        store: width of the matrices that are left floating, as in `narrow`.
        rest: width of all other floats, likewise.
        samples: inputs by name, that static arithmetic is calibrated on.

    Returns:
        The narrowed model, weights inside, with the inputs and outputs of ``model``.
    """
    name = model.graph.name
    # The quantizer takes nodes by name, and the simplifier leaves some without.
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}#{index}"
    if arithmetic == DYNAMIC:
        model = _quantized(quantize_dynamic, model, op_types_to_quantize=list(_DYNAMIC_OPS))
    elif arithmetic == STATIC:
        model = static_products(model, measure(model, samples), [])
    narrow(model, store, rest)
    model.graph.name = name
    model.producer_name, model.doc_string = "", ""
    del model.metadata_props[:]
    return model


def static_products(model: ModelProto, ranges: Ranges, kept: Sequence[str]) -> ModelProto:
    """Convolutions and products in static 8 bits (QDQ), but for the nodes ``kept``; all between them stays float.

    The model has its weights inside, and may be changed.
    """
    with tempfile.TemporaryDirectory(prefix="kokoro-ranges-") as directory:
        encodings = Path(directory) / "encodings.json"
        save_ranges(ranges, encodings)
        return _quantized(
            quantize_static,
            model,
            calibration_data_reader=None,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_STATIC_OPS),
            activation_type=QuantType.QUInt8,
            nodes_to_exclude=list(kept),
            calibration_cache_path=encodings,
        )


def _quantized(quantize: Callable[..., None], model: ModelProto, **options: Any) -> ModelProto:
    """What one of ONNX Runtime's quantizers makes of a model, weights in int8 with a scale a channel."""
    # The exporter has simplified the model: what this entry claims is true, and silences a warning.
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    with tempfile.TemporaryDirectory(prefix="kokoro-quantize-") as directory:
        path = Path(directory) / "quantized.onnx"
        quantize(model, path, per_channel=True, weight_type=QuantType.QInt8, **options)
        return onnx.load(path)
