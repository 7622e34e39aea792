"""Recipe files: what an override may say, which nodes it means, and how the quantizer follows it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from kokoro_npu.audio import metrics
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.calibrate import calibrate
from kokoro_npu.quantize.overrides import NodePrecision, Override, load_overrides, resolve, save_overrides
from kokoro_npu.quantize.recipe import Calibration, Recipe

CALIBRATION = Calibration(frames=(10,))
W8A16 = Recipe("mixed", 16, 8, True, CALIBRATION)
CHANNELS, WIDTH = 4, 32
PRESET = dict.fromkeys(("/a/Conv", "/a/LeakyRelu", "/b/Conv", "/c/Sin"), NodePrecision(8, 16))


def _model() -> onnx.ModelProto:
    """Nodes x -> /a/Conv -> /a/Relu -> /b/Conv -> /c/Sin -> audio."""
    rng = np.random.default_rng(0)
    weights = {f"{n}.weight": rng.standard_normal((CHANNELS, CHANNELS, 1, 3)).astype(np.float32) for n in "ab"}
    shape = [1, CHANNELS, 1, WIDTH]
    nodes = [
        helper.make_node("Conv", ["x", "a.weight"], ["a"], name="/a/Conv", pads=[0, 1, 0, 1]),
        helper.make_node("LeakyRelu", ["a"], ["r"], name="/a/LeakyRelu"),
        helper.make_node("Conv", ["r", "b.weight"], ["b"], name="/b/Conv", pads=[0, 1, 0, 1]),
        helper.make_node("Sin", ["b"], ["audio"], name="/c/Sin"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("audio", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def encodings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "encodings.json"
    x = np.random.default_rng(1).standard_normal((1, CHANNELS, 1, WIDTH)).astype(np.float32)
    calibrate([(_model(), [{"x": x}])], CALIBRATION, path)
    return path


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Element type of each quantized weight, and of each activation by the tensor that is quantized."""
    initializers = {t.name: t for t in model.graph.initializer}
    types = {name[: -len("_quantized")]: t.data_type for name, t in initializers.items() if name.endswith("_quantized")}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            types[node.input[0]] = initializers[node.input[2]].data_type
    return types


def _quantize(encodings: Path, *overrides: Override) -> onnx.ModelProto:
    return quantize_decoder(_model(), replace(W8A16, overrides=overrides), encodings)


def test_an_override_sets_the_bits_of_its_nodes_alone(encodings: Path) -> None:
    types = _types(_quantize(encodings, Override("/a/*", "why", weights=16)))
    assert types["a.weight"] == TensorProto.INT16
    assert types["b.weight"] == TensorProto.INT8
    assert types["x"] == types["r"] == types["b"] == TensorProto.UINT16


def test_eight_bit_activations_between_sixteen_bit_ones(encodings: Path) -> None:
    model = _quantize(encodings, Override("/b/Conv", "why", activations=8))
    onnx.checker.check_model(model)
    initializers = {t.name: t for t in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    conv = next(node for node in model.graph.node if node.name == "/b/Conv")
    # An op has one type for what it reads and writes.
    assert initializers[producers[conv.input[0]].input[2]].data_type == TensorProto.UINT8
    assert _types(model)["x"] == TensorProto.UINT16


def test_a_float_override_leaves_no_quantization(encodings: Path) -> None:
    model = _quantize(encodings, Override("/b/*", "why", float=True))
    assert "b.weight" in {t.name for t in model.graph.initializer}
    assert _types(model)["a.weight"] == TensorProto.INT8


def test_later_overrides_win_setting_by_setting() -> None:
    overrides = [
        Override("*", "all", weights=16),
        Override("/a/*", "narrow", weights=8),
        Override("/b/*", "fixed", float=True),
    ]
    precisions = resolve(_model(), PRESET, overrides)
    assert precisions["/a/Conv"] == NodePrecision(8, 16)
    assert precisions["/b/Conv"] == NodePrecision(16, 16, float=True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (Override("/d/*", "why", weights=16), "'/d/*' matches no node of small"),
        (Override("/a/Cnv", "why", weights=16), "did you mean /a/Conv"),
        (Override("/c/*", "why", weights=16), "'/c/*' sets weights, but matches no convolution"),
    ],
)
def test_an_override_that_means_nothing_is_one_line(override: Override, message: str) -> None:
    with pytest.raises(KokoroNpuError) as caught:
        resolve(_model(), PRESET, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kernel", "attributes", "split"),
    [
        (7, {"pads": [0, 3, 0, 3]}, False),
        (9, {"pads": [0, 4, 0, 4]}, True),
        (3, {"pads": [0, 2, 0, 2], "dilations": [1, 2]}, True),
        (12, {"strides": [1, 6]}, False),
    ],
)
def test_sixteen_bits_are_split_where_htp_cannot(
    kernel: int, attributes: dict[str, list[int]], split: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    model = _model()
    weight = rng.standard_normal((CHANNELS, CHANNELS, 1, kernel)).astype(np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "a.weight"))
    model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(CHANNELS).astype(np.float32), "bias"))
    conv = model.graph.node[0]
    conv.input.append("bias")
    del conv.attribute[:]
    conv.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = {"x": rng.standard_normal((1, CHANNELS, 1, WIDTH)).astype(np.float32)}
    calibrate([(model, [x])], CALIBRATION, tmp_path / "encodings.json")
    truth = _run(model, x)

    def heard(*overrides: Override) -> tuple[float, onnx.ModelProto]:
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        made = quantize_decoder(copy, replace(W8A16, overrides=overrides), tmp_path / "encodings.json")
        return metrics.snr_db(truth, _run(made, x)), made

    rest = Override("/b/*", "not under test", weights=16)
    (at_8, _), (at_16, made) = heard(rest), heard(rest, Override("/a/*", "why", weights=16))
    assert at_16 > at_8 + 30
    types = _types(made)
    assert types["a.weight"] == (TensorProto.INT8 if split else TensorProto.INT16)
    assert ("a.weight_low" in types) == split


def _run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, inputs)[0].ravel()
    return result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("overrides: [", "is no YAML"),
        ("[]", "it must hold `overrides:`"),
        ("overrides: {}", "it must hold `overrides:`"),
        ("overrides: [3]", "override 1: 3 is no mapping"),
        ("overrides: [{nodes: /a, why: w, weihgts: 8}]", "weihgts is no setting; did you mean weights?"),
        ("overrides: [{nodes: /a, why: w, weights: 4}]", "weights is 4; it must be one of 8, 16"),
        ("overrides: [{nodes: /a, why: w, float: 1}]", "float is 1; it must be one of true, false"),
        ("overrides: [{nodes: /a, why: w, weights: true}]", "weights is True; it must be one of 8, 16"),
        ("overrides: [{nodes: /a, weights: 8}]", "why is missing"),
        ("overrides: [{why: w, weights: 8}]", "nodes is missing"),
        ("overrides: [{nodes: /a, why: w, weights: 8}, {nodes: /b, why: w}]", "override 2 (/b) sets nothing"),
    ],
)
def test_a_bad_recipe_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(KokoroNpuError) as caught:
        load_overrides(tmp_path / "recipe.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"none\.yaml: No such file or directory; see quantize\.recipe"):
        load_overrides(tmp_path / "none.yaml")


def test_overrides_survive_their_file(tmp_path: Path) -> None:
    overrides = (Override("/a/*", "because: it # matters", weights=16), Override("/b", "ü", activations=8, float=False))
    save_overrides(tmp_path / "recipe.yaml", overrides, "Written by a test.\nTwice.")
    assert load_overrides(tmp_path / "recipe.yaml") == overrides
    text = (tmp_path / "recipe.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Written by a test.\n# Twice.\n")
    assert list(yaml.safe_load(text)["overrides"][0]) == ["nodes", "weights", "why"]
