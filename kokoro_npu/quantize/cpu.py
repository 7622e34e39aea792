"""Quantization of the CPU models (duration and prosody): integer arithmetic where it pays, narrow storage elsewhere.

Three ways to the same bytes, which differ in time and in error:

* stored: the weight is int8 in the file and float32 in memory (`kokoro_npu.quantize.storage`);
* dynamic: the operator computes in int8, with a range that each input gets when it arrives;
* static: the operator computes in uint8, with ranges that were measured on the corpus beforehand.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy.typing as npt
import onnx
from onnx import ModelProto
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

from kokoro_npu.quantize.calibrate import measure
from kokoro_npu.quantize.encodings import save_ranges
from kokoro_npu.quantize.storage import narrow

_STATIC_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

Feeds = Mapping[str, npt.NDArray]


@dataclass(frozen=True)
class CpuRecipe:
    """How a CPU model is narrowed.

    Attributes:
        dynamic_ops: operator types that compute in dynamic int8: MatMul (Gemm is made of it), LSTM, Conv.
        static: whether convolutions and matrix products compute in static uint8.
        store: width of the matrices that are left floating: int8, fp16, or empty to treat them as the rest.
        rest: fp16 to store all other floats in half precision, or empty to leave them.
    """

    dynamic_ops: tuple[str, ...] = ()
    static: bool = False
    store: str = ""
    rest: str = ""


def quantize_cpu(model: ModelProto, recipe: CpuRecipe, samples: Iterable[Feeds] = ()) -> ModelProto:
    """Narrow a CPU model.

    Args:
        model: with its weights inside; it may be changed.
        recipe: how.
        samples: inputs by name, to calibrate static quantization on.

    Returns:
        The narrowed model, weights inside, with the inputs and outputs of ``model``.
    """
    name = model.graph.name
    _name_nodes(model)
    if recipe.dynamic_ops:
        model = _dynamic(model, recipe.dynamic_ops)
    if recipe.static:
        with tempfile.TemporaryDirectory(prefix="kokoro-calibrate-") as directory:
            encodings = Path(directory) / "encodings.json"
            save_ranges(measure(model, samples), encodings)
            model = static_products(model, [], encodings)
    narrow(model, recipe.store, recipe.rest)
    model.graph.name = name
    model.producer_name, model.doc_string = "", ""
    del model.metadata_props[:]
    return model


def _name_nodes(model: ModelProto) -> None:
    """A name for every node: the quantizer takes nodes by name, and the simplifier leaves some without."""
    for index, node in enumerate(model.graph.node):
        if not node.name:
            node.name = f"{node.op_type}#{index}"


def _pre_processed(model: ModelProto) -> ModelProto:
    # The exporter has simplified the model: what this entry claims is true, and silences a warning.
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    return model


def _dynamic(model: ModelProto, ops: tuple[str, ...]) -> ModelProto:
    with tempfile.TemporaryDirectory(prefix="kokoro-quantize-") as directory:
        path = Path(directory) / "quantized.onnx"
        quantize_dynamic(
            _pre_processed(model),
            path,
            op_types_to_quantize=list(ops),
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(path)


def static_products(model: ModelProto, kept: Sequence[str], encodings_path: Path) -> ModelProto:
    """Convolutions and matrix products in static 8 bits (QDQ); everything between them stays float.

    Args:
        model: with its weights inside; it may be changed.
        kept: nodes that stay float.
        encodings_path: ranges by tensor name, of :mod:`kokoro_npu.quantize.calibrate`.
    """
    with tempfile.TemporaryDirectory(prefix="kokoro-quantize-") as directory:
        path = Path(directory) / "quantized.onnx"
        quantize_static(
            _pre_processed(model),
            path,
            None,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_STATIC_OPS),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=list(kept),
            calibration_cache_path=encodings_path,
        )
        return onnx.load(path)
