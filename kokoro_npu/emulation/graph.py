"""Parts of a graph as models of their own, and the values of tensors inside a graph."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, helper

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.machine import THREADS

Tensor = npt.NDArray

QUANTIZE, DEQUANTIZE, CONSTANT = "QuantizeLinear", "DequantizeLinear", "Constant"
_CARRIERS = (QUANTIZE, DEQUANTIZE, CONSTANT)


class Graph:
    """A model and who writes and reads each of its tensors.

    Args:
        model: static shapes, weights inside.
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.writer = {name: node for node in self.nodes for name in node.output if name}
        self.order = {id(node): index for index, node in enumerate(self.nodes)}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    @cached_property
    def infos(self) -> dict[str, onnx.ValueInfoProto]:
        """Type and shape of every tensor that is no initializer."""
        typed = self.model
        if any(node.domain for node in self.nodes):
            typed = ModelProto()
            typed.CopyFrom(self.model)
            for node in typed.graph.node:
                # The quantizer may write 16-bit Q/DQ in Microsoft's domain, through which onnx infers no shape.
                if node.op_type in (QUANTIZE, DEQUANTIZE):
                    node.domain = ""
        graph = onnx.shape_inference.infer_shapes(typed, data_prop=True).graph
        return {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}

    @property
    def operators(self) -> Iterator[NodeProto]:
        """The nodes that compute: neither Q/DQ nor constants."""
        return (node for node in self.nodes if node.op_type not in _CARRIERS)

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

    def part(self, inputs: Collection[str], outputs: Iterable[str], name: str) -> ModelProto:
        """The nodes between two sets of tensors as a model of its own.

        Args:
            inputs: float tensors to be fed; the walk back from the outputs ends at them.
            outputs: tensors to be given.
            name: of the new graph.

        Raises:
            KokoroNpuError: an output needs an input of the whole model that is not among ``inputs``.
        """
        outputs = list(outputs)
        kept: dict[int, NodeProto] = {}
        used: list[str] = []
        todo = list(outputs)
        fed = set(inputs) - set(outputs)
        while todo:
            tensor = todo.pop()
            if tensor in fed or tensor in self.constants or not tensor:
                used.append(tensor)
                continue
            writer = self.writer.get(tensor)
            if writer is None:
                raise KokoroNpuError(f"{name}: {tensor} is an input of the model and is not fed")
            if id(writer) not in kept:
                kept[id(writer)] = writer
                todo += writer.input
        nodes = sorted(kept.values(), key=lambda node: self.order[id(node)])
        needed = set(used)
        graph = helper.make_graph(
            nodes,
            name,
            [self._info(tensor) for tensor in inputs if tensor in needed],
            [self._info(tensor) for tensor in outputs],
            [self.constants[tensor] for tensor in self.constants if tensor in needed],
            # What lies between: shape inference does not see through every kind of Q/DQ.
            value_info=[self.infos[t] for node in nodes for t in node.output if t in self.infos and t not in outputs],
        )
        return helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)

    def _info(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, self.dtype(name), self.shape(name))


def values(model: ModelProto, feeds: Mapping[str, Tensor], names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Run a model on ONNX Runtime CPU as it is written, nothing fused, and give tensors of it.

    Args:
        model: weights inside.
        feeds: inputs by name.
        names: tensors to give; the model's outputs by default. Inputs of the model are given back as they are.
    """
    if names is not None:
        graph = Graph(model)
        wanted = [name for name in names if name in graph.writer]
        model = graph.part([info.name for info in model.graph.input], wanted, model.graph.name) if wanted else model
        given = {name: feeds[name] for name in names if name in feeds}
        if not wanted:
            return given
    else:
        given = {}
    ort.disable_telemetry_events()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fed = {info.name: np.ascontiguousarray(feeds[info.name]) for info in session.get_inputs()}
    outputs = [info.name for info in session.get_outputs()]
    return given | dict(zip(outputs, session.run(None, fed), strict=True))
