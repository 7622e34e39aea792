"""Parts of a graph as models of their own, and the values of tensors inside a graph."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto
from onnx.utils import Extractor

from kokoro_npu.graphs.sessions import cpu_session

Tensor = npt.NDArray

QUANTIZE, DEQUANTIZE, CONSTANT = "QuantizeLinear", "DequantizeLinear", "Constant"
_CARRIERS = (QUANTIZE, DEQUANTIZE, CONSTANT)


class Graph:
    """A model and who writes and reads each of its tensors.

    Args:
        model: static shapes, weights inside.
    """

    def __init__(self, model: ModelProto) -> None:
        typed = onnx.shape_inference.infer_shapes(model, data_prop=True)
        self._extractor = Extractor(typed)
        self.infos = self._extractor.value_infos
        """Type and shape of every tensor that is no initializer."""
        self.constants = self._extractor.initializers
        self.writer = {name: node for node in typed.graph.node for name in node.output if name}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in typed.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    @property
    def operators(self) -> Iterator[NodeProto]:
        """The nodes that compute: neither Q/DQ nor constants."""
        return (node for node in self._extractor.graph.node if node.op_type not in _CARRIERS)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of any tensor."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        return tuple(dim.dim_value for dim in self.infos[name].type.tensor_type.shape.dim)

    def dtype(self, name: str) -> int:
        """ONNX element type of any tensor."""
        if name in self.constants:
            return int(self.constants[name].data_type)
        return int(self.infos[name].type.tensor_type.elem_type)

    def quantized(self, name: str) -> list[str]:
        """What readers of ``name`` see: the outputs of its DQ nodes, or ``name`` itself where nothing quantizes it."""
        quantizers = [node for node in self.readers.get(name, ()) if node.op_type == QUANTIZE]
        seen = [
            reader.output[0]
            for node in quantizers
            for reader in self.readers.get(node.output[0], ())[:1]
            if reader.op_type == DEQUANTIZE
        ]
        return seen or [name]

    def sources(self, node: NodeProto) -> list[str]:
        """The float tensors that a node computes from, seen through Q/DQ pairs; constants are left out."""
        found: list[str] = []
        todo = [name for name in reversed(node.input) if name]
        while todo:
            name = todo.pop()
            writer = self.writer.get(name)
            if name in self.constants or (writer is not None and writer.op_type == CONSTANT):
                continue
            if writer is not None and writer.op_type in _CARRIERS:
                todo.append(writer.input[0])
            elif name not in found:
                found.append(name)
        return found

    def part(self, inputs: Collection[str], outputs: Sequence[str]) -> ModelProto:
        """The nodes between two sets of tensors as a model of its own.

        Args:
            inputs: tensors to be fed; the walk back from the outputs ends at them. Those that nothing reads are left
                out.
            outputs: tensors to be given.
        """
        part = self._extractor.extract_model(list(inputs), list(outputs))
        read = {name for node in part.graph.node for name in node.input}
        kept = [info for info in part.graph.input if info.name in read]
        del part.graph.input[:]
        part.graph.input.extend(kept)
        return part


def values(model: ModelProto, feeds: Mapping[str, Tensor], names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Run a model on ONNX Runtime CPU as it is written, nothing fused, and give tensors of it.

    Args:
        model: weights inside.
        feeds: inputs by name.
        names: tensors to give; the model's outputs by default. Inputs of the model are given back as they are.
    """
    given = {name: feeds[name] for name in names or () if name in feeds}
    if names is not None:
        wanted = [name for name in names if name not in feeds]
        if not wanted:
            return given
        model = Graph(model).part([info.name for info in model.graph.input], wanted)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = cpu_session(model.SerializeToString(), options=options)
    fed = {info.name: np.ascontiguousarray(feeds[info.name]) for info in session.get_inputs()}
    outputs = [info.name for info in session.get_outputs()]
    return given | dict(zip(outputs, session.run(None, fed), strict=True))
