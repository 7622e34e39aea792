"""Small ONNX graphs with the op kinds of the decoder, for the tests of audit and compile."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

CHANNELS, WIDTH, STYLE = 16, 64, 8
INPUTS = {
    "x": (1, CHANNELS, 1, WIDTH),
    "mask": (1, 1, 1, WIDTH),
    "ratio": (1, 6, 1, 1),
    "style": (1, STYLE),
}


def save_model(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: dict[str, tuple[int | str, ...]],
    outputs: dict[str, tuple[int | str, ...]],
    constants: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a float model of opset 17; string dimensions are symbolic."""

    def infos(shapes: dict[str, tuple[int | str, ...]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in shapes.items()]

    graph = helper.make_graph(
        list(nodes),
        "small",
        infos(inputs),
        infos(outputs),
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def decoder_like(path: Path, tail: Sequence[NodeProto] = (), tail_output: str = "pre") -> Path:
    """A masked, styled, upsampling block with a Snake and an exp/cos head: the decoder's op kinds in small.

    ``tail`` nodes may follow ``pre`` ([1, 1, 1, 128]); ``tail_output`` is what the last Reshape then takes.
    """
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    constants = {
        "w1": weight(CHANNELS, CHANNELS, 1, 3), "b1": weight(CHANNELS),
        "w2": weight(CHANNELS, 8, 1, 4), "b2": weight(8), "w3": weight(1, 16, 1, 3), "b3": weight(1),
        "gw": weight(2 * CHANNELS, STYLE), "gb": weight(2 * CHANNELS),
        "one": np.ones(CHANNELS, np.float32), "nil": np.zeros(CHANNELS, np.float32),
        "s0": ints(0), "s1": ints(1), "sc": ints(CHANNELS), "s2c": ints(2 * CHANNELS), "axis": ints(1),
        "style4": ints(1, 2 * CHANNELS, 1, 1), "column": ints(1, 1, WIDTH, 1), "twice": ints(1, 1, WIDTH, 2),
        "row": ints(1, 1, 1, 2 * WIDTH), "flat": ints(1, 2 * WIDTH),
    }  # fmt: skip
    kinds: list[tuple[str, str, list[str], str, dict[str, Any]]] = [
        ("conv1", "Conv", ["x", "w1", "b1"], "c1", {"pads": [0, 1, 0, 1]}),
        ("mask1", "Mul", ["c1", "mask"], "m1", {}),
        ("mean1", "ReduceMean", ["m1"], "mean", {"axes": [3], "keepdims": 1}),
        ("ratio1", "Slice", ["ratio", "s0", "s1", "axis"], "r0", {}),
        ("scale1", "Mul", ["mean", "r0"], "mu", {}),
        ("center", "Sub", ["m1", "mu"], "sub", {}),
        ("mask2", "Mul", ["sub", "mask"], "sm", {}),
        ("norm", "InstanceNormalization", ["sm", "one", "nil"], "in1", {"epsilon": 1e-5}),
        ("style1", "Gemm", ["style", "gw", "gb"], "g", {"transB": 1}),
        ("style2", "Reshape", ["g", "style4"], "g4", {}),
        ("gamma1", "Slice", ["g4", "s0", "sc", "axis"], "gamma", {}),
        ("beta1", "Slice", ["g4", "sc", "s2c", "axis"], "beta", {}),
        ("affine1", "Mul", ["in1", "gamma"], "n1", {}),
        ("affine2", "Add", ["n1", "beta"], "n2", {}),
        ("leaky", "LeakyRelu", ["n2"], "lr", {"alpha": 0.2}),
        ("up", "ConvTranspose", ["lr", "w2", "b2"], "ct", {"strides": [1, 2], "pads": [0, 1, 0, 1]}),
        ("sin1", "Sin", ["ct"], "sn", {}),
        ("square", "Mul", ["sn", "sn"], "sq", {}),
        ("snake", "Add", ["ct", "sq"], "sk", {}),
        ("cos1", "Cos", ["ct"], "cs", {}),
        ("exp1", "Exp", ["cs"], "ex", {}),
        ("cat", "Concat", ["sk", "ex"], "cc", {"axis": 1}),
        ("mask3", "Reshape", ["mask", "column"], "mc", {}),
        ("mask4", "Expand", ["mc", "twice"], "m2", {}),
        ("mask5", "Reshape", ["m2", "row"], "mw", {}),
        ("mask6", "Mul", ["cc", "mw"], "cm", {}),
        ("conv3", "Conv", ["cm", "w3", "b3"], "pre", {"pads": [0, 1, 0, 1]}),
    ]  # fmt: skip
    nodes = [helper.make_node(op, ins, [out], name=name, **attrs) for name, op, ins, out, attrs in kinds]
    nodes += [*tail, helper.make_node("Reshape", [tail_output, "flat"], ["audio"], name="flatten")]
    return save_model(path, nodes, dict(INPUTS), {"audio": (1, 2 * WIDTH)}, constants)


class _RandomInputs(CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._feeds = iter(
            [{n: rng.standard_normal(s).astype(np.float32) for n, s in INPUTS.items()} for _ in range(3)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantize_w8a16(source: Path, target: Path) -> Path:
    """QDQ model of :func:`decoder_like` by the quantizer that the pipeline uses."""
    config = get_qnn_qdq_config(
        str(source), _RandomInputs(), activation_type=QuantType.QUInt16, weight_type=QuantType.QUInt8
    )
    config.extra_options["UseQDQContribOps"] = False  # as the pipeline: Q/DQ of ONNX itself, opset 21
    quantize(str(source), str(target), config)
    return target
