"""Mapping an int8 ONNX back to torch: synthetic graphs of every form a weight takes in the real export."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.weights.onnx_int8 import GridTensor, dither, map_tensors

HIDDEN = 3
FEATURES = 4


class _Export:
    """Builds a graph in the style of the real export."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}

    def const(self, name: str, value: np.ndarray) -> str:
        self.initializers[name] = value
        return name

    def node(self, kind: str, inputs: list[str], name: str, outputs: int = 1) -> str:
        names = [f"{name}_out{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name))
        return names[0]

    def integer(self, kind: str, scope: str, shape: tuple[int, ...], channels: int | None) -> np.ndarray:
        """A ConvInteger or MatMulInteger with its scale and a bias in between, as the quantizer leaves it."""
        unsigned = kind == "ConvInteger"
        q = self.rng.integers(0 if unsigned else -127, 255 if unsigned else 127, shape)
        q = q.astype(np.uint8 if unsigned else np.int8)
        zero = np.asarray(self.rng.integers(1, 9, channels or ()), q.dtype)
        scale = np.asarray(self.rng.uniform(0.01, 0.02, channels or ()), np.float32)
        weight = self.const(f"{scope}_q", q)
        out = self.node(kind, ["x_q", weight, "x_zero", self.const(f"{scope}_zp", zero)], f"{scope}/W_quantized")
        out = self.node("Add", [out, "some_bias"], f"{scope}/bias_add")
        out = self.node("Cast", [out], f"{scope}/cast")
        scales = self.node("Mul", ["x_scale", self.const(f"{scope}_s", scale)], f"{scope}/scales_mul")
        self.node("Mul", [out, scales], f"{scope}/output_scale_mul")
        return (q.astype(np.float32) - zero.astype(np.float32)) * scale

    def model(self) -> onnx.ModelProto:
        tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in self.initializers.items()]
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        return helper.make_model(helper.make_graph(self.nodes, "g", [], [y], initializer=tensors))


def test_conv_integer_with_zero_point_and_one_scale() -> None:
    export = _Export()
    expected = export.integer("ConvInteger", "/encoder/text_encoder/cnn.0/cnn.0.0", (4, 3, 5), None)
    found = map_tensors(export.model(), {"text_encoder.cnn.0.0.weight": (4, 3, 5)})
    np.testing.assert_array_equal(found["text_encoder.cnn.0.0.weight"].value, expected)


def test_matmul_integer_is_transposed_and_keeps_a_step_per_output() -> None:
    export = _Export()
    expected = export.integer("MatMulInteger", "/decoder/decoder/encode/norm1/fc", (6, 4), 4)
    tensor = map_tensors(export.model(), {"decoder.encode.norm1.fc.weight": (4, 6)})["decoder.encode.norm1.fc.weight"]
    np.testing.assert_array_equal(tensor.value, expected.T)
    assert tensor.step is not None
    assert tensor.step.shape == (4, 1)


def test_modules_called_through_the_predictors_method_are_the_predictors() -> None:
    export = _Export()
    expected = export.integer("ConvInteger", "/encoder/F0.1/conv1", (2, 2, 3), None)
    found = map_tensors(export.model(), {"predictor.F0.1.conv1.weight": (2, 2, 3)})
    np.testing.assert_array_equal(found["predictor.F0.1.conv1.weight"].value, expected)


def _shared(second: int) -> onnx.ModelProto:
    export = _Export()
    export.integer("MatMulInteger", "/encoder/bert/layer/attention/query", (4, 4), 4)
    export.rng = np.random.default_rng(second)
    export.integer("MatMulInteger", "/encoder/bert/layer/attention_1/query", (4, 4), 4)
    return export.model()


def test_a_layer_called_twice_is_one_tensor() -> None:
    assert list(map_tensors(_shared(0), {"bert.layer.attention.query.weight": (4, 4)})) == [
        "bert.layer.attention.query.weight"
    ]


def test_two_values_of_one_tensor_are_an_error() -> None:
    with pytest.raises(KokoroNpuError, match=r"query\.weight has a second, different value"):
        map_tensors(_shared(1), {"bert.layer.attention.query.weight": (4, 4)})


def test_embedding() -> None:
    export = _Export()
    q = export.rng.integers(-127, 127, (5, 4)).astype(np.int8)
    name = "/encoder/text_encoder/embedding/Gather_quantized"
    out = export.node("Gather", [export.const("q", q), "tokens"], name)
    scale, zero = export.const("s", np.array(0.03, np.float32)), export.const("z", np.array(2, np.int8))
    export.node("DequantizeLinear", [out, scale, zero], "/encoder/text_encoder/embedding/dequantize")
    tensor = map_tensors(export.model(), {"text_encoder.embedding.weight": (5, 4)})["text_encoder.embedding.weight"]
    np.testing.assert_array_equal(tensor.value, (q.astype(np.float32) - 2) * np.float32(0.03))


def test_plain_float_weights_and_names() -> None:
    export = _Export()
    up = export.rng.normal(size=(3, 2, 4)).astype(np.float32)
    linear = export.rng.normal(size=(9, 1)).astype(np.float32)
    bias = export.rng.normal(size=2).astype(np.float32)
    inputs = [
        "x",
        export.const("/decoder/decoder/Mul_output_0", up),
        export.const("decoder.decoder.ups.0.bias", bias),
    ]
    export.node("ConvTranspose", inputs, "/decoder/decoder/ups.0/ConvTranspose")
    export.node("MatMul", ["x", export.const("onnx::MatMul_1", linear)], "/decoder/decoder/l_linear/MatMul")
    table = {"decoder.ups.0.weight": (3, 2, 4), "decoder.ups.0.bias": (2,), "decoder.l_linear.weight": (1, 9)}
    found = map_tensors(export.model(), table)
    assert found.keys() == table.keys()
    np.testing.assert_array_equal(found["decoder.ups.0.weight"].value, up)
    np.testing.assert_array_equal(found["decoder.ups.0.bias"].value, bias)
    np.testing.assert_array_equal(found["decoder.l_linear.weight"].value, linear.T)
    assert found["decoder.ups.0.weight"].step is None


def test_lstm_speaks_the_same_in_torch() -> None:
    """The mapped LSTM, run by torch, against ONNX's definition written out, gates i, o, f, c."""
    export = _Export(3)
    w = export.rng.integers(-127, 127, (2, FEATURES, 4 * HIDDEN)).astype(np.int8)
    r = export.rng.integers(-127, 127, (2, HIDDEN, 4 * HIDDEN)).astype(np.int8)
    b = export.rng.normal(size=(2, 8 * HIDDEN)).astype(np.float32)
    ws, rs = np.array([0.01, 0.02], np.float32), np.array([0.015, 0.005], np.float32)
    zero = export.const("zero", np.array([0, 3], np.int8))
    inputs = ["x", export.const("w", w), export.const("r", r), export.const("b", b), "", "h0", "c0", ""]
    inputs += [export.const("ws", ws), zero, export.const("rs", rs), zero]
    export.node("DynamicQuantizeLSTM", inputs, "/encoder/shared/LSTM_quantized", outputs=3)
    lstm = torch.nn.LSTM(FEATURES, HIDDEN, batch_first=True, bidirectional=True)
    table = {f"predictor.shared.{name}": tuple(p.shape) for name, p in lstm.named_parameters()}
    found = map_tensors(export.model(), table)
    assert found.keys() == table.keys()
    lstm.load_state_dict({n.removeprefix("predictor.shared."): torch.from_numpy(t.value) for n, t in found.items()})

    x = export.rng.normal(size=(5, FEATURES)).astype(np.float32)
    expected = []
    for direction, steps in ((0, x), (1, x[::-1])):
        offset = np.float32((0, 3)[direction])
        wd, rd = (w[direction] - offset) * ws[direction], (r[direction] - offset) * rs[direction]
        h = c = np.zeros(HIDDEN, np.float32)
        outputs = []
        for step in steps:
            gates = step @ wd + h @ rd + b[direction, : 4 * HIDDEN] + b[direction, 4 * HIDDEN :]
            i, o, f = (1 / (1 + np.exp(-gates[HIDDEN * k : HIDDEN * (k + 1)])) for k in range(3))
            c = f * c + i * np.tanh(gates[3 * HIDDEN :])
            h = o * np.tanh(c)
            outputs.append(h)
        expected.append(outputs if direction == 0 else outputs[::-1])
    with torch.no_grad():
        got = lstm(torch.from_numpy(x)[None])[0][0].numpy()
    np.testing.assert_allclose(got, np.concatenate([np.array(e) for e in expected], axis=1), atol=1e-5)


def test_a_node_of_no_module_is_an_error() -> None:
    export = _Export()
    export.integer("ConvInteger", "/decoder/decoder/new_conv", (2, 2, 3), None)
    with pytest.raises(KokoroNpuError, match=r"the weight of /decoder/decoder/new_conv/W_quantized .* no module"):
        map_tensors(export.model(), {"decoder.conv.weight": (2, 2, 3)})


def test_a_missing_scale_is_an_error() -> None:
    export = _Export()
    export.integer("ConvInteger", "/decoder/decoder/conv", (2, 2, 3), None)
    export.nodes = [n for n in export.nodes if not n.name.endswith("scales_mul")]
    with pytest.raises(KokoroNpuError, match="the weight of /decoder/decoder/conv/W_quantized"):
        map_tensors(export.model(), {"decoder.conv.weight": (2, 2, 3)})


def test_dither_moves_grid_tensors_by_at_most_half_a_step() -> None:
    step = np.array([[0.1], [0.4]], np.float32)
    tensors = {
        "grid": GridTensor(np.zeros((2, 1000), np.float32), step),
        "plain": GridTensor(np.ones(3, np.float32)),
    }
    noisy = dither(tensors, 7)
    assert noisy["plain"] is tensors["plain"].value
    in_steps = noisy["grid"] / step
    assert np.abs(in_steps).max() <= 0.5
    assert in_steps.std(axis=1) == pytest.approx([1 / np.sqrt(12)] * 2, rel=0.1)


def test_dither_depends_on_the_seed_and_on_nothing_else() -> None:
    tensor = GridTensor(np.zeros((4, 4), np.float32), np.ones(1, np.float32))
    alone, beside = dither({"b": tensor}, 7), dither({"a": tensor, "b": tensor}, 7)
    np.testing.assert_array_equal(alone["b"], beside["b"])
    assert not np.array_equal(beside["a"], beside["b"])
    assert not np.array_equal(alone["b"], dither({"b": tensor}, 8)["b"])
