"""The distinct (op, attributes, shape class) of a decoder, each with a node that stands for it.

A decoder has a thousand nodes and some hundred kinds of work. A shape class writes a width as a multiple of the
frames, so that the same work in another bucket is the same class.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from kokoro_npu.emulation.graph import CONSTANT, DEQUANTIZE, QUANTIZE, Graph
from kokoro_npu.geometry import DECODE_RATE, GENERATOR_RATE, SAMPLES_PER_FRAME, UPSAMPLE_RATES

_RATES = (SAMPLES_PER_FRAME, GENERATOR_RATE, DECODE_RATE * UPSAMPLE_RATES[0], DECODE_RATE, 1)
_WIDEST_EXTRA = 48
"""Columns that a width may have beyond a multiple of the frames: the STFT's, its padding, and the hops of both."""
_UNBOUNDED = 2**31


@dataclass(eq=False)
class OpClass:
    """One distinct piece of work.

    Attributes:
        key: JSON text of what makes the class; equal in every bucket.
        op: ONNX op type.
        label: attributes, shapes and types, to read.
        nodes: names of all nodes of the class.
        inputs: float tensors that the representative, the first node, computes from.
        outputs: tensors that its readers see.
    """

    key: str
    op: str
    label: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[str] = field(default_factory=list)

    def model(self, graph: Graph) -> ModelProto:
        """The representative alone, with the Q/DQ pairs around it."""
        return graph.part(self.inputs, self.outputs)


def op_classes(graph: Graph, frames: int) -> list[OpClass]:
    """The classes of a graph, in the order of their first nodes.

    Args:
        graph: a decoder of ``frames`` frames, float or with Q/DQ pairs.
        frames: T, what widths are written in.
    """
    found: dict[str, OpClass] = {}
    for node in graph.operators:
        inputs = graph.sources(node)
        if not inputs:
            continue  # computed from constants alone: the compiler folds it
        description = _describe(graph, node, frames)
        key = json.dumps(description, sort_keys=True)
        if key not in found:
            outputs = [seen for name in node.output if name for seen in graph.quantized(name)]
            found[key] = OpClass(key, node.op_type, _label(description), inputs, outputs)
        found[key].nodes.append(node.name or node.output[0])
    return list(found.values())


def _describe(graph: Graph, node: NodeProto, frames: int) -> dict[str, Any]:
    return {
        "op": node.op_type,
        "attributes": {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute},
        "inputs": [_operand(graph, name, frames) for name in node.input if name],
        # Equal operands are other work: Mul(x, x) is a square.
        "same": [list(node.input).index(name) if name else -1 for name in node.input],
        "outputs": [_tensor(graph, graph.quantized(name)[0], frames) for name in node.output],
    }


def _label(description: dict[str, Any]) -> str:
    attributes = "".join(f"{name}={value} " for name, value in description["attributes"].items())
    return f"{attributes}({', '.join(description['inputs'])}) -> {', '.join(description['outputs'])}"


def _operand(graph: Graph, name: str, frames: int) -> str:
    """Stored type and shape of an operand; the values instead, where it is a constant of integers (axes, a slice)."""
    source = name
    while (writer := graph.writer.get(source)) is not None and writer.op_type in (QUANTIZE, DEQUANTIZE):
        source = writer.input[0]
    constant = graph.constants.get(source)
    if constant is None and writer is not None and writer.op_type == CONSTANT:
        constant = next(a.t for a in writer.attribute if a.name == "value")
    if constant is None:
        return _tensor(graph, name, frames)
    if constant.data_type == TensorProto.INT64:
        numbers = [int(n) for n in numpy_helper.to_array(constant).reshape(-1)]
        return f"{{{','.join(_width(n, frames) if abs(n) < _UNBOUNDED else 'end' for n in numbers)}}}"
    # A constant's shape is not of the bucket: its channels and taps are named as they are.
    return f"constant {_stored(graph, name, constant.data_type)}[{','.join(map(str, constant.dims))}]"


def _tensor(graph: Graph, name: str, frames: int) -> str:
    dims = graph.shape(name)
    # Only the last axis of a vector, and the last two of an image, run along the time.
    first = max(len(dims) - 2, 1) if len(dims) > 1 else 0
    shape = (str(dim) if axis < first else _width(dim, frames) for axis, dim in enumerate(dims))
    return f"{_stored(graph, name, graph.dtype(name))}[{','.join(shape)}]"


def _stored(graph: Graph, name: str, dtype: int) -> str:
    """The type in which an operand is stored, with ``/channel`` where it has a scale for each channel."""
    writer, channels = graph.writer.get(name), ""
    if writer is not None and writer.op_type == DEQUANTIZE:
        dtype = graph.dtype(writer.input[0])
        channels = "/channel" if math.prod(graph.shape(writer.input[1])) > 1 else ""
    return TensorProto.DataType.Name(dtype).lower() + channels


def _width(dim: int, frames: int) -> str:
    """A dimension as a multiple of the frames, such as ``120T+8``; a number that is none stays one."""
    for rate in _RATES:
        extra = dim - rate * frames
        # Only at the STFT's rates are there more columns than steps; the upsampling leaves one out.
        if -1 <= extra <= (min(_WIDEST_EXTRA, frames) if rate >= GENERATOR_RATE else 0):
            return f"{rate}T" + (f"{extra:+d}" if extra else "")
    return str(dim)


def _plain(value: Any) -> str:
    """An attribute's value to read: of a tensor its type and shape, of a list its numbers."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, TensorProto):
        return f"{TensorProto.DataType.Name(value.data_type).lower()}[{','.join(map(str, value.dims))}]"
    return str(value) if isinstance(value, (int, float, str)) else "x".join(map(str, value))
