"""The dynamic-int8 ONNX export of Kokoro v1.0, mapped back to the tensors of `kokoro.KModel`.

The export keeps the torch module path in its node names, e.g.
``/decoder/decoder/generator/resblocks.0/convs1.0/Conv_quantized``, and plain float tensors under their torch
names behind one wrapper's prefix. So a node says which module it belongs to, and its operator says how the weight
is stored. Whether all of the model was found is `writing.check_tensors`' business.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from kokoro_npu.errors import KokoroNpuError

_ROOTS = {"encoder": ("", "predictor."), "decoder": ("",)}
"""The export's wrapper modules, and where their children live in KModel. ``F0Ntrain`` is a method of the
predictor, so the modules it calls are traced without the predictor's scope."""

_STFT = "decoder.decoder.generator.stft."
"""Prefix of the STFT's bases, which are no trained weights."""


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
    """The trained tensors of the export under their torch names.

    Args:
        model: the int8 export.
        table: names and shapes the model uses (`kmodel.tensor_table`). Only the names are used here, to tell
            which module a node belongs to.

    Raises:
        KokoroNpuError: a weight that is not stored as in that export; the message names its node.
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


class _Mapper:
    def __init__(self, graph: onnx.GraphProto, table: Mapping[str, tuple[int, ...]]) -> None:
        self.nodes, self.table = graph.node, table
        self.found: dict[str, GridTensor] = {}
        self.initializers = {i.name: i for i in graph.initializer}
        self.producer = {name: node for node in graph.node for name in node.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)
        self.modules = {name[:end] for name in table for end in range(len(name)) if name[end] == "."}

    def run(self) -> dict[str, GridTensor]:
        rules = {
            "ConvInteger": (1, self._integer),
            "MatMulInteger": (1, self._integer),
            "Conv": (1, self._plain),
            "ConvTranspose": (1, self._plain),
            "MatMul": (1, self._plain),
            "Gather": (0, self._embedding),
            "DynamicQuantizeLSTM": (1, self._lstm),
        }
        for node in self.nodes:
            at, rule = rules.get(node.op_type, (0, None))
            if rule and node.input[at] in self.initializers and not node.input[at].startswith(_STFT):
                try:
                    rule(node)
                except (KeyError, ValueError) as error:
                    raise KokoroNpuError(
                        f"int8 ONNX: the weight of {node.name} ({node.op_type}) is not stored as in Kokoro v1.0's "
                        f"export: {error}"
                    ) from None
        # Biases, layer norms and Snake alphas: float, under their torch names behind the wrapper's.
        for name in self.initializers:
            root, _, torch_name = name.partition(".")
            if root in _ROOTS and torch_name in self.table and torch_name not in self.found:
                self._put(torch_name, self._array(name))
        return self.found

    def _array(self, name: str) -> NDArray[Any]:
        return numpy_helper.to_array(self.initializers[name])

    def _floats(self, name: str) -> NDArray[np.float32]:
        return self._array(name).astype(np.float32)

    def _module(self, node: onnx.NodeProto) -> str:
        root, *scopes = node.name.strip("/").split("/")[:-1]
        parts: list[str] = []
        for scope in scopes:
            # A child of a Sequential repeats its parent's name: asr_res/asr_res.0.
            if parts and scope.startswith(parts[-1] + "."):
                parts.pop()
            parts.append(scope)
        path = ".".join(parts)
        # A module called again (ALBERT's shared layer) gets _1, _2, ... on its scope.
        for candidate in (path, re.sub(r"_\d+(?=\.|$)", "", path)):
            for prefix in _ROOTS[root]:
                if prefix + candidate in self.modules:
                    return prefix + candidate
        raise ValueError("it belongs to no module of the model")

    def _put(self, name: str, value: NDArray[Any], step: NDArray[Any] | None = None) -> None:
        tensor = GridTensor(np.ascontiguousarray(value, dtype=np.float32), step)
        known = self.found.setdefault(name, tensor)
        if known is not tensor and not np.array_equal(known.value, tensor.value):
            raise ValueError(f"{name} has a second, different value")

    def _integer(self, node: onnx.NodeProto) -> None:
        """(q - zero point) * scale; MatMul weights are [in, out], one scale a column, torch's [out, in]."""
        name = f"{self._module(node)}.weight"
        q, zero, step = self._floats(node.input[1]), self._floats(node.input[3]), self._scale(node)
        if node.op_type == "MatMulInteger":
            self._put(name, ((q - zero) * step).T, np.reshape(step, (-1, 1)))
        else:
            outer = (-1,) + (1,) * (q.ndim - 1)
            zero, step = np.reshape(zero, outer), np.reshape(step, outer)
            self._put(name, (q - zero) * step, step)

    def _scale(self, node: onnx.NodeProto) -> NDArray[np.float32]:
        """The weight's scale: the constant factor in the Mul that makes the node's output scale."""
        output = node.output[0]
        while True:
            (user,) = self.consumers[output]
            if user.op_type == "Mul":
                (scales,) = (name for name in user.input if name != output)
                (constant,) = (name for name in self.producer[scales].input if name in self.initializers)
                return self._floats(constant)
            output = user.output[0]  # a bias or a cast in between

    def _plain(self, node: onnx.NodeProto) -> None:
        value = self._array(node.input[1])
        self._put(f"{self._module(node)}.weight", value.T if node.op_type == "MatMul" else value)

    def _embedding(self, node: onnx.NodeProto) -> None:
        (dequantize,) = self.consumers[node.output[0]]
        q, scale, zero = (self._floats(name) for name in (node.input[0], *dequantize.input[1:3]))
        step = np.reshape(scale, (-1, 1))
        self._put(f"{self._module(node)}.weight", (q - zero) * step, step)

    def _lstm(self, node: onnx.NodeProto) -> None:
        """Here [direction, in, 4 hidden], gates i, o, f, c; in torch [4 hidden, in], i, f, g (= c), o."""
        module = self._module(node)
        bias = self._array(node.input[3])
        hidden = bias.shape[1] // 8
        gates = np.concatenate([np.arange(hidden) + hidden * k for k in (0, 2, 3, 1)])
        for direction, suffix in enumerate(("", "_reverse")[: bias.shape[0]]):
            for kind, at, scale_at in (("ih", 1, 8), ("hh", 2, 10)):
                q, scale, zero = (self._floats(node.input[i])[direction] for i in (at, scale_at, scale_at + 1))
                step = np.broadcast_to(scale, (4 * hidden,))
                self._put(
                    f"{module}.weight_{kind}_l0{suffix}", ((q - zero) * step).T[gates], step[gates].reshape(-1, 1)
                )
            for kind, half in zip(("ih", "hh"), np.split(bias[direction], 2), strict=True):
                self._put(f"{module}.bias_{kind}_l0{suffix}", half[gates])
