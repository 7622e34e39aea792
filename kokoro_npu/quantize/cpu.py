"""Quantization of the CPU models (duration and prosody): integer arithmetic where it pays, narrow storage elsewhere.

Three ways to the same bytes, which differ in time and in error:

* stored: the weight is int8 or int4 in the file and float32 in memory (`kokoro_npu.quantize.storage`);
* dynamic: the operator computes in int8, with a range that each input gets when it arrives;
* static: the operator computes in uint8, with ranges that were measured on the corpus beforehand.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy.typing as npt
import onnx
from onnx import ModelProto
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from kokoro_npu.quantize.storage import matrices, narrow

_STATIC_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

Feeds = Mapping[str, npt.NDArray]


@dataclass(frozen=True)
class CpuRecipe:
    """How a CPU model is narrowed.

    Attributes:
        dynamic_ops: operator types that compute in dynamic int8: MatMul (Gemm is made of it), LSTM, Conv.
        static: whether convolutions and matrix products compute in static uint8.
        store: width of the matrices that are left floating: int8, int4, fp16 or empty for float32.
        rest: fp16 to store in half precision all other floats, and what ``store`` does not name; or empty.
        widths: node to width, where it differs from ``store``.
        float_nodes: prefixes of names of nodes that neither compute nor are stored in integers.
    """

    dynamic_ops: tuple[str, ...] = ()
    static: bool = False
    store: str = ""
    rest: str = ""
    widths: Mapping[str, str] = field(default_factory=dict)
    float_nodes: tuple[str, ...] = ()


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
    kept = [node.name for node in model.graph.node if recipe.float_nodes and node.name.startswith(recipe.float_nodes)]
    _name_nodes(model)
    if recipe.dynamic_ops:
        model = _dynamic(model, recipe.dynamic_ops, kept)
    if recipe.static:
        model = _static(model, kept, samples)
    if recipe.store or recipe.rest:
        widths = {} if not recipe.store else {matrix.node: recipe.store for matrix in matrices(model)}
        widths |= {node: width for node, width in recipe.widths.items() if node in widths or not recipe.store}
        for node in kept:
            widths.pop(node, None)
        narrow(model, widths, recipe.rest)
    model.graph.name = name
    model.producer_name, model.doc_string = "", ""
    del model.metadata_props[:]
    return model


def _name_nodes(model: ModelProto) -> None:
    """A name for every node: the quantizer takes nodes by name, and the simplifier leaves some without."""
    taken = {node.name for node in model.graph.node}
    for index, node in enumerate(model.graph.node):
        if not node.name:
            node.name = f"{node.op_type}#{index}"
            assert node.name not in taken


def _pre_processed(model: ModelProto) -> ModelProto:
    # The exporter has simplified the model: what this entry claims is true, and silences a warning.
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    return model


def _dynamic(model: ModelProto, ops: tuple[str, ...], kept: list[str]) -> ModelProto:
    with tempfile.TemporaryDirectory(prefix="kokoro-quantize-") as directory:
        path = Path(directory) / "quantized.onnx"
        quantize_dynamic(
            _pre_processed(model),
            path,
            op_types_to_quantize=list(ops),
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=kept,
        )
        return onnx.load(path)


class _Reader(CalibrationDataReader):
    def __init__(self, samples: Iterable[Feeds]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, npt.NDArray] | None:
        sample = next(self._samples, None)
        return dict(sample) if sample is not None else None


def _static(model: ModelProto, kept: list[str], samples: Iterable[Feeds]) -> ModelProto:
    return static_products(model, kept, reader=_Reader(samples), per_channel=True)


def static_products(
    model: ModelProto,
    kept: Sequence[str],
    reader: CalibrationDataReader | None = None,
    encodings_path: Path | None = None,
    per_channel: bool = False,
) -> ModelProto:
    """Convolutions and matrix products in static 8 bits (QDQ); everything between them stays float.

    Args:
        model: with its weights inside; it may be changed.
        kept: nodes that stay float.
        reader: inputs to calibrate on, where there are no encodings.
        encodings_path: ranges by tensor name, in the form of onnxruntime's calibration cache.
        per_channel: int8 weights with a scale a channel, in place of uint8 ones with a scale.
    """
    with tempfile.TemporaryDirectory(prefix="kokoro-quantize-") as directory:
        path = Path(directory) / "quantized.onnx"
        quantize_static(
            _pre_processed(model),
            path,
            reader,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(_STATIC_OPS),
            per_channel=per_channel,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8 if per_channel else QuantType.QUInt8,
            nodes_to_exclude=list(kept),
            calibration_cache_path=encodings_path,
        )
        return onnx.load(path)
