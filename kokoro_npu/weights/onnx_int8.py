"""The dynamic-int8 ONNX export of Kokoro v1.0, mapped back to the tensors of `kokoro.KModel`.

The export keeps the torch module path in its node names, e.g.
``/decoder/decoder/generator/resblocks.0/convs1.0/Conv_quantized``, and plain float tensors under their torch
names behind one wrapper's prefix. So a node says which module it belongs to, its operator says how the weight
is stored, and the table of expected tensors says when the map is whole. An initializer that no rule takes is
an error.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from kokoro_npu.errors import KokoroNpuError

_ROOTS = {"encoder": ("", "predictor."), "decoder": ("",)}
"""The export's wrapper modules, and where their children live in KModel. ``F0Ntrain`` is a method of the
predictor, so the modules it calls are traced without the predictor's scope."""

_LITERALS = re.compile(r"/.*/Constant(OfShape)?(_\d+)?_output_0|decoder\.decoder\.generator\.stft\..*")
"""Float initializers that are no trained weight: literals of the traced code and the STFT's bases."""

_RECIPROCAL = re.compile(r".*/Reciprocal(_\d+)?_output_0")
_WEIGHT_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


@dataclass(frozen=True)
class GridTensor:
    """A weight and the grid it lies on.

    Attributes:
        value: float32, in torch's layout.
        step: the quantization step, broadcastable to ``value``; None where the export kept plain float.
    """

    value: NDArray[np.float32]
    step: NDArray[np.float32] | None = None


def map_tensors(model: onnx.ModelProto, table: Mapping[str, tuple[int, ...]]) -> dict[str, GridTensor]:
    """Every trained tensor of the export under its torch name.

    Args:
        model: the int8 export.
        table: names and shapes the model uses (`kmodel.tensor_table`). Only the names are used here, to tell
            which module a node belongs to; `canonical.check_tensors` compares the result with it.

    Raises:
        KokoroNpuError: a weight no rule takes, a node whose module the model does not have, a scale that
            cannot be found, or one tensor with two values; the message names the node or initializer.
    """
    return _Mapper(model.graph, table).run()


def dither(tensors: Mapping[str, GridTensor], seed: int) -> dict[str, NDArray[np.float32]]:
    """Values with uniform noise of half a step either side on the tensors that lie on a grid.

    The error of the first quantization was of that size, so a second 8-bit quantization is not free any more.
    Each tensor draws from its own stream (seed and name), so no tensor's noise depends on another's presence.
    """
    noisy: dict[str, NDArray[np.float32]] = {}
    for name, tensor in tensors.items():
        value = tensor.value
        if tensor.step is not None:
            rng = np.random.default_rng([seed, *name.encode()])
            value = value + (rng.random(value.shape, dtype=np.float32) - np.float32(0.5)) * tensor.step
        noisy[name] = value
    return noisy


@dataclass
class _Mapper:
    graph: onnx.GraphProto
    table: Mapping[str, tuple[int, ...]]
    found: dict[str, GridTensor] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.initializers = {i.name: i for i in self.graph.initializer}
        self.producer = {name: node for node in self.graph.node for name in node.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)
        self.modules = {name[:end] for name in self.table for end in range(len(name)) if name[end] == "."}

    def run(self) -> dict[str, GridTensor]:
        rules = {
            "ConvInteger": self._integer,
            "MatMulInteger": self._integer,
            "Conv": self._plain,
            "ConvTranspose": self._plain,
            "MatMul": self._plain,
            "Gather": self._embedding,
            "DynamicQuantizeLSTM": self._lstm,
        }
        for node in self.graph.node:
            if (rule := rules.get(node.op_type)) and len(node.input) > 1 and self._holds_weight(node):
                rule(node)
        for name in self.initializers:
            self._named(name)
        self._check_leftovers()
        return self.found

    def _holds_weight(self, node: onnx.NodeProto) -> bool:
        name = node.input[0 if node.op_type == "Gather" else 1]
        tensor = self.initializers.get(name)
        return tensor is not None and tensor.data_type in _WEIGHT_TYPES and not _LITERALS.fullmatch(name)

    def _array(self, name: str) -> NDArray[Any]:
        if name not in self.initializers:
            raise KokoroNpuError(f"int8 ONNX: {name} is not a constant, so a weight cannot be read from it")
        self.taken.add(name)
        return numpy_helper.to_array(self.initializers[name])

    def _module(self, node: onnx.NodeProto) -> str:
        root, *scopes = node.name.strip("/").split("/")[:-1] or [""]
        parts: list[str] = []
        for scope in scopes:
            # A child of a Sequential repeats its parent's name: asr_res/asr_res.0.
            if parts and scope.startswith(parts[-1] + "."):
                parts.pop()
            parts.append(scope)
        path = ".".join(parts)
        # A module called again (ALBERT's shared layer) gets _1, _2, ... on its scope.
        for candidate in (path, re.sub(r"_\d+(?=\.|$)", "", path)):
            for prefix in _ROOTS.get(root, ()):
                if prefix + candidate in self.modules:
                    return prefix + candidate
        raise KokoroNpuError(f"int8 ONNX: node {node.name} ({node.op_type}) holds a weight of no module of the model")

    def _put(self, name: str, value: NDArray[Any], step: NDArray[Any] | None, where: str) -> None:
        tensor = GridTensor(
            np.ascontiguousarray(value, dtype=np.float32),
            None if step is None else np.asarray(step, np.float32),
        )
        known = self.found.setdefault(name, tensor)
        if known is not tensor and not np.array_equal(known.value, tensor.value):
            raise KokoroNpuError(f"int8 ONNX: {where} gives {name} a second, different value")

    def _integer(self, node: onnx.NodeProto) -> None:
        """(q - zero point) * scale; MatMul weights are [in, out], one scale a column, torch's [out, in]."""
        module = self._module(node)
        q = self._array(node.input[1]).astype(np.float32)
        zero = self._array(node.input[3]).astype(np.float32) if len(node.input) > 3 and node.input[3] else 0
        step = self._scale(node)
        if node.op_type == "MatMulInteger":
            self._put(f"{module}.weight", ((q - zero) * step).T, np.reshape(step, (-1, 1)), node.name)
        else:
            outer = (-1,) + (1,) * (q.ndim - 1)
            zero, step = np.reshape(zero, outer), np.reshape(step, outer)
            self._put(f"{module}.weight", (q - zero) * step, step, node.name)

    def _scale(self, node: onnx.NodeProto) -> NDArray[np.float32]:
        """The weight's scale: the constant factor in the Mul that makes the node's output scale."""
        output = node.output[0]
        while True:
            users = self.consumers.get(output, [])
            if len(users) != 1 or users[0].op_type not in ("Add", "Cast", "Mul"):
                break
            user = users[0]
            if user.op_type != "Mul":
                output = user.output[0]
                continue
            for name in user.input:
                scales = self.producer.get(name)
                if name != output and scales is not None and scales.op_type == "Mul":
                    constants = [n for n in scales.input if n in self.initializers]
                    if len(constants) == 1:
                        return self._array(constants[0]).astype(np.float32)
            break
        raise KokoroNpuError(f"int8 ONNX: no constant weight scale behind node {node.name} ({node.op_type})")

    def _plain(self, node: onnx.NodeProto) -> None:
        value = self._array(node.input[1])
        self._put(f"{self._module(node)}.weight", value.T if node.op_type == "MatMul" else value, None, node.name)

    def _embedding(self, node: onnx.NodeProto) -> None:
        q = self._array(node.input[0])
        users = self.consumers.get(node.output[0], [])
        if q.dtype == np.float32:
            self._put(f"{self._module(node)}.weight", q, None, node.name)
            return
        if len(users) != 1 or users[0].op_type != "DequantizeLinear":
            raise KokoroNpuError(f"int8 ONNX: embedding {node.name} is not followed by one DequantizeLinear")
        scale, zero = (self._array(name).astype(np.float32) for name in users[0].input[1:3])
        step = np.reshape(scale, (-1, 1))
        self._put(f"{self._module(node)}.weight", (q.astype(np.float32) - zero) * step, step, node.name)

    def _lstm(self, node: onnx.NodeProto) -> None:
        """Here [direction, in, 4 hidden], gates i, o, f, c; in torch [4 hidden, in], i, f, g (= c), o."""
        module = self._module(node)
        if len(node.input) != 12 or any(node.input[i] for i in (4, 7)):
            raise KokoroNpuError(f"int8 ONNX: {node.name} has sequence lengths or peepholes, or lacks its scales")
        bias = self._array(node.input[3])
        hidden = bias.shape[1] // 8
        gates = np.concatenate([np.arange(hidden) + hidden * k for k in (0, 2, 3, 1)])
        for direction, suffix in enumerate(("", "_reverse")[: bias.shape[0]]):
            for kind, at, scale_at in (("ih", 1, 8), ("hh", 2, 10)):
                q = self._array(node.input[at])[direction].astype(np.float32)
                scale = self._array(node.input[scale_at])[direction]
                zero = self._array(node.input[scale_at + 1])[direction].astype(np.float32)
                step = np.broadcast_to(scale, (4 * hidden,))
                self._put(
                    f"{module}.weight_{kind}_l0{suffix}",
                    ((q - zero) * step).T[gates],
                    step[gates].reshape(-1, 1),
                    node.name,
                )
            for kind, half in (("ih", bias[direction, : 4 * hidden]), ("hh", bias[direction, 4 * hidden :])):
                self._put(f"{module}.bias_{kind}_l0{suffix}", half[gates], None, node.name)

    def _named(self, name: str) -> None:
        """Biases, layer norms and Snake alphas: float, under their torch names behind the wrapper's."""
        torch_name = name.partition(".")[2]
        if name.partition(".")[0] in _ROOTS and torch_name in self.table and name not in self.taken:
            self._put(torch_name, self._array(name), None, name)

    def _check_leftovers(self) -> None:
        for name, tensor in self.initializers.items():
            if (
                name in self.taken
                or not tensor.dims
                or tensor.data_type not in _WEIGHT_TYPES
                or _LITERALS.fullmatch(name)
            ):
                continue
            if _RECIPROCAL.fullmatch(name) and self._inverts_an_alpha(name):
                continue
            users = ", ".join(f"{n.name} ({n.op_type})" for n in self.consumers.get(name, [])[:2])
            raise KokoroNpuError(f"int8 ONNX: no rule takes initializer {name} {list(tensor.dims)}, used by {users}")

    def _inverts_an_alpha(self, name: str) -> bool:
        """Snake's 1 / alpha was folded to a constant; it adds nothing to the alpha of the same block."""
        block = name.strip("/").rpartition("/")[0].replace("/", ".").partition(".")[2]
        folded = numpy_helper.to_array(self.initializers[name])
        return any(
            torch_name.startswith(f"{block}.alpha") and np.allclose(folded * tensor.value, 1.0, rtol=1e-5)
            for torch_name, tensor in self.found.items()
            if tensor.value.shape == folded.shape
        )
