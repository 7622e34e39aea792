"""Counts of graphs whose cost is known by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kokoro_npu.graphs.cost import count


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    x: tuple[int, ...],
    y: tuple[int, ...],
    constants: dict[str, np.ndarray],
    opset: int = 17,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "known",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def _weight(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


CASES: list[tuple[str, str, dict[str, Any], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]] = [
    ("conv", "Conv", {"pads": [0, 1, 0, 1]}, (1, 8, 1, 100), (4, 8, 1, 3), (1, 4, 1, 100), 4 * 8 * 3 * 100),
    ("strided", "Conv", {"strides": [1, 2]}, (1, 8, 1, 100), (4, 8, 1, 2), (1, 4, 1, 50), 4 * 8 * 2 * 50),
    ("grouped", "Conv", {"group": 8}, (1, 8, 1, 100), (8, 1, 1, 1), (1, 8, 1, 100), 8 * 100),
    ("up", "ConvTranspose", {"strides": [1, 5]}, (1, 8, 1, 10), (8, 4, 1, 5), (1, 4, 1, 50), 8 * 4 * 5 * 10),
    ("matmul", "MatMul", {}, (1, 7, 16), (16, 3), (1, 7, 3), 7 * 16 * 3),
    ("gemm", "Gemm", {}, (7, 16), (16, 3), (7, 3), 7 * 16 * 3),
    ("gemm-turned", "Gemm", {"transA": 1}, (16, 7), (16, 3), (7, 3), 7 * 16 * 3),
]


@pytest.mark.parametrize(
    ("op", "attributes", "x", "weight", "y", "macs"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_macs_weights_and_activations(
    tmp_path: Path,
    op: str,
    attributes: dict[str, Any],
    x: tuple[int, ...],
    weight: tuple[int, ...],
    y: tuple[int, ...],
    macs: int,
) -> None:
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    cost = count(_save(tmp_path / "m.onnx", [node], x, y, {"w": _weight(*weight)}))
    assert cost.gmacs == pytest.approx(macs / 1e9, abs=1e-6)
    assert round(cost.gmacs * 1e6) == round(macs / 1e3)
    assert cost.weight_bytes == 4 * int(np.prod(weight))
    assert cost.activation_bytes == 4 * int(np.prod(y))


def test_elementwise_ops_cost_memory_and_no_macs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sin", ["x"], ["s"]), helper.make_node("Mul", ["s", "s"], ["y"])]
    cost = count(_save(tmp_path / "m.onnx", nodes, (1, 50), (1, 50), {}))
    assert (cost.gmacs, cost.weight_bytes, cost.activation_bytes) == (0, 0, 2 * 4 * 50)


def test_qdq_counts_what_is_stored(tmp_path: Path) -> None:
    """A quantized graph: 8-bit weights, 16-bit activations, and the float sides of the pairs not at all."""
    constants: dict[str, np.ndarray] = {
        "w": np.ones((4, 8, 1, 1), np.int8),
        "scale": np.array(0.1, np.float32),
        "zero16": np.array(0, np.uint16),
        "zero8": np.array(0, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero16"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero16"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero8"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero16"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "scale", "zero16"], ["y"]),
    ]
    cost = count(_save(tmp_path / "m.onnx", nodes, (1, 8, 1, 100), (1, 4, 1, 100), constants, opset=21))
    assert cost.gmacs == pytest.approx(4 * 8 * 100 / 1e9, abs=1e-6)
    assert cost.weight_bytes == 32 + 4 + 2 + 1
    assert cost.activation_bytes == 2 * (800 + 400)


def test_external_weights_are_counted_and_not_read(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = _save(tmp_path / "m.onnx", [node], (1, 512), (1, 512), {"w": _weight(512, 512)})
    inside = count(path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.weights")
    (tmp_path / "m.weights").unlink()
    assert count(path) == inside
    assert inside.weight_bytes == 4 * 512 * 512
