"""Narrow weights: what is stored, what the runtime makes of it, and how far it is from the float model."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from kokoro_npu.graphs.reading import constants, tensor_bytes
from kokoro_npu.quantize.cpu import DYNAMIC, STATIC, quantize_cpu
from kokoro_npu.quantize.storage import FP16, INT8, matrices, narrow, round_int8

RNG = np.random.default_rng(0)
HIDDEN = 32
BOTH = "bidirectional"
WEIGHTS = {
    "table": RNG.standard_normal((40, 32)),
    "conv": 0.1 * RNG.standard_normal((48, 32, 3)),
    "up": 0.07 * RNG.standard_normal((48, 32, 4)),
    "gemm": 0.17 * RNG.standard_normal((32, 40)),
    "gemm_t": 0.15 * RNG.standard_normal((36, 40)),
    "product": 0.17 * RNG.standard_normal((36, 33)),
    "w": 0.1 * RNG.standard_normal((2, 4 * HIDDEN, 33)),
    "r": 0.1 * RNG.standard_normal((2, 4 * HIDDEN, HIDDEN)),
    "bias": 0.3 * RNG.standard_normal((2, 8 * HIDDEN)),
}
CHANNEL_AXES = {
    "table": (0,), "conv": (0,), "up": (1,), "gemm": (1,), "gemm_t": (0,), "product": (1,), "w": (0, 1), "r": (0, 1),
}  # fmt: skip


def _model() -> ModelProto:
    """Every operator that holds matrices, one after the other: indices [1, 9] to [9, 1, 2, 32]."""
    nodes = [
        helper.make_node("Gather", ["table", "indices"], ["e"], name="gather"),
        helper.make_node("Transpose", ["e"], ["et"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["et", "conv"], ["c"], name="conv", pads=[1, 1]),
        helper.make_node("ConvTranspose", ["c", "up"], ["u"], name="up", pads=[1, 2]),
        helper.make_node("Transpose", ["u"], ["ut"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["ut", "flat"], ["f"]),
        helper.make_node("Tanh", ["f"], ["ft"]),
        helper.make_node("Gemm", ["ft", "gemm"], ["g"], name="gemm"),
        helper.make_node("Tanh", ["g"], ["gt"]),
        helper.make_node("Gemm", ["gt", "gemm_t"], ["t"], name="gemm_t", transB=1),
        helper.make_node("Tanh", ["t"], ["tt"]),
        helper.make_node("MatMul", ["tt", "product"], ["p"], name="product"),
        helper.make_node("Reshape", ["p", "sequence"], ["s"]),
        helper.make_node("LSTM", ["s", "w", "r", "bias"], ["y"], name="lstm", hidden_size=HIDDEN, direction=BOTH),
    ]  # fmt: skip
    tensors = {name: value.astype(np.float32) for name, value in WEIGHTS.items()}
    shapes: dict[str, np.ndarray] = {"flat": np.array([-1, 32], np.int64), "sequence": np.array([-1, 1, 33], np.int64)}
    graph = helper.make_graph(
        nodes,
        "all_kinds",
        [helper.make_tensor_value_info("indices", TensorProto.INT64, [1, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["steps", 2, 1, HIDDEN])],
        [numpy_helper.from_array(value, name) for name, value in {**tensors, **shapes}.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


INDICES = {"indices": np.arange(9, dtype=np.int64)[None] * 4}


def _run(model: ModelProto) -> np.ndarray:
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString()).run(None, INDICES)[0]


def _snr(reference: np.ndarray, value: np.ndarray) -> float:
    return 10 * float(np.log10(np.square(reference).sum() / np.square(value - reference).sum()))


def _replaced(values: dict[str, np.ndarray]) -> ModelProto:
    model = _model()
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(numpy_helper.from_array(values[tensor.name].astype(np.float32), tensor.name))
    return model


def test_every_kind_of_matrix_is_found_with_its_channels() -> None:
    assert matrices(_model()) == CHANNEL_AXES
    small = _replaced({"product": WEIGHTS["product"][:, :28]})  # 1008 elements
    assert matrices(small).keys() == CHANNEL_AXES.keys() - {"product"}


@pytest.mark.parametrize("rest", ["", FP16])
def test_what_runs_is_the_float_model_with_rounded_weights(rest: str) -> None:
    """Rounded here channel by channel: each scale leaves no more error than the peak's would."""
    narrowed = _model()
    narrow(narrowed, INT8, rest)
    values = {}
    for name, axes in CHANNEL_AXES.items():
        weight = WEIGHTS[name].astype(np.float32)
        rows = np.moveaxis(weight, axes, range(len(axes)))
        flat = rows.reshape(int(np.prod(rows.shape[: len(axes)])), -1)
        back = np.zeros_like(flat)
        for row, channel in enumerate(flat):
            levels, scale = round_int8(channel[None], (0,), half=rest == FP16)
            back[row] = levels[0] * scale.astype(np.float32).item()
            peak_scale = (np.abs(channel).max() / 127).astype(scale.dtype).astype(np.float32)
            peak_error = np.square(np.rint(channel / peak_scale) * peak_scale - channel).sum()
            error = np.square(back[row] - channel).sum()
            assert error <= peak_error * 1.0001
        values[name] = np.moveaxis(back.reshape(rows.shape), range(len(axes)), axes)
    if rest:
        values["bias"] = WEIGHTS["bias"].astype(np.float16)
    np.testing.assert_allclose(_run(narrowed), _run(_replaced(values)), atol=2e-6)


@pytest.mark.parametrize(("width", "rest", "floor"), [(INT8, "", 30.0), (FP16, "", 60.0), (INT8, FP16, 30.0)])
def test_error_and_bytes_of_each_width(width: str, rest: str, floor: float) -> None:
    before, after = _model(), _model()
    narrow(after, width, rest)
    snr = _snr(_run(before), _run(after))
    assert floor < snr < floor + 35
    size = {name: sum(tensor_bytes(c.tensor) for c in constants(m)) for name, m in (("a", before), ("b", after))}
    per_value = {INT8: 1, FP16: 2}[width]
    values = sum(int(np.prod(WEIGHTS[name].shape)) for name in CHANNEL_AXES)
    saved = size["a"] - size["b"]
    assert saved < (4 - per_value) * values + 4 * WEIGHTS["bias"].size
    assert saved > 0.9 * (4 - per_value) * values - 4 * 2000  # scales


def test_the_runtime_unpacks_once(tmp_path: Path) -> None:
    """Folded: the optimized graph has the float model's operators and float weights, so its speed is the same."""
    nodes = {}
    for name, width in (("float", ""), ("narrow", INT8)):
        model = _model()
        if width:
            narrow(model, width, FP16)
            assert len(model.graph.node) > len(_model().graph.node)
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / f"{name}.onnx")
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        ort.InferenceSession(model.SerializeToString(), options)
        nodes[name] = sorted(node.op_type for node in onnx.load(tmp_path / f"{name}.onnx").graph.node)
    assert nodes["narrow"] == nodes["float"]


@pytest.mark.parametrize(
    ("store", "rest", "types"),
    [
        (INT8, FP16, {"conv_int8": "INT8", "conv_scale": "FLOAT16", "bias_fp16": "FLOAT16"}),
        (INT8, "", {"conv_int8": "INT8", "conv_scale": "FLOAT", "bias": "FLOAT"}),
        ("", FP16, {"conv_fp16": "FLOAT16", "bias_fp16": "FLOAT16"}),
        ("", "", {"conv": "FLOAT", "bias": "FLOAT"}),
    ],
)
def test_matrices_and_the_rest_have_widths_of_their_own(store: str, rest: str, types: dict[str, str]) -> None:
    model = _model()
    narrow(model, store, rest)
    stored = {t.name: TensorProto.DataType.Name(t.data_type) for t in model.graph.initializer}
    assert types.items() <= stored.items()
    assert ("conv" in stored) == ("conv" in types)


def test_a_channel_of_zeros_stays_zero() -> None:
    value = np.zeros((2, 8), np.float32)
    value[1] = np.linspace(-1, 1, 8)
    levels, scale = round_int8(value, (0,), half=True)
    assert not levels[0].any()
    assert np.isfinite(scale).all()


# --- The CPU models' ways to integers, on the same graph ---


def test_dynamic_computes_in_integers_and_stores_the_others_narrow() -> None:
    model = quantize_cpu(_model(), DYNAMIC, INT8, "")
    ops = [node.op_type for node in model.graph.node]
    assert ops.count("DynamicQuantizeLSTM") == 1
    assert ops.count("MatMulInteger") == 3  # both Gemms are products
    assert ops.count("Conv") == ops.count("ConvTranspose") == 1
    floats = [t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and np.prod(t.dims) > 600]
    assert floats == []
    assert 20 < _snr(_run(_model()), _run(model)) < 60


def test_static_computes_products_and_convolutions_in_uint8() -> None:
    samples = [INDICES, {"indices": INDICES["indices"][:, ::-1].copy()}]
    model = quantize_cpu(_model(), STATIC, "", "", samples)
    producers = {name: node.op_type for node in model.graph.node for name in node.output}
    by_name = {node.name: node for node in model.graph.node}
    for name in ("conv", "up", "gemm", "gemm_t", "product"):
        assert producers[by_name[name].input[1]] == "DequantizeLinear", name
    assert "w" in by_name["lstm"].input
    assert 8 < _snr(_run(_model()), _run(model)) < 45


def test_nodes_without_a_name_are_quantized_too() -> None:
    model = _model()
    for node in model.graph.node:
        node.name = ""
    quantized = quantize_cpu(model, DYNAMIC, "", "")
    assert sum(node.op_type == "MatMulInteger" for node in quantized.graph.node) == 3
