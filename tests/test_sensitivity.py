"""Sensitivity analysis: its parts, that nothing else changes, that a killed run resumes, and the recipe made of it."""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pandas as pd
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from kokoro_npu.audio import metrics
from kokoro_npu.build.reports import write_table
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.quantize.calibrate import measure
from kokoro_npu.quantize.overrides import NodePrecision, load_overrides, resolve, weighted_nodes
from kokoro_npu.sensitivity import analysis
from kokoro_npu.sensitivity.analysis import Part, PartQuantizer
from kokoro_npu.sensitivity.bench import Bench, choose_windows
from kokoro_npu.sensitivity.derive import RecipeThresholds, derive, patterns
from kokoro_npu.sensitivity.table import Sensitivity, read_sensitivities
from tests.narrow_model import narrow_kmodel

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 64


def _weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)


def _model() -> onnx.ModelProto:
    """Two Gemms that share a weight, a Snake between them, and a table that is no matrix."""
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="/one/Gemm", transB=1),
        helper.make_node("Sin", ["a"], ["s"], name="/snake/Sin"),
        helper.make_node("Mul", ["s", "s"], ["m"], name="/snake/Mul"),
        helper.make_node("Gemm", ["m", "w"], ["y"], name="/two/Gemm", transB=1),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "small", infos[:1], infos[1:], [numpy_helper.from_array(_weight(), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _input() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((1, WIDTH)).astype(np.float32)


def test_every_weight_and_module_is_a_part() -> None:
    one, two = analysis.weight_parts(_model())
    assert one == Part("/one/Gemm", "Gemm", {"w": (0,)}, (), WIDTH * WIDTH)
    assert two.node == "/two/Gemm"
    # Inputs and outputs of the graph are no activations of a module.
    assert analysis.activation_parts(_model()) == [Part("/snake/Sin", "Sin", {}, ("a", "s", "m"), 0)]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_of_one_node_alone_is_on_its_grid(bits: int) -> None:
    w, x = _weight(), _input()
    step = np.abs(w).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    rounded = np.round(w / step) * step
    quantizer = PartQuantizer(_model())
    heard = quantizer.session(analysis.weight_parts(_model())[1], bits, {}).run(None, {"x": x})[0]
    truth = np.square(np.sin(x @ w.T)) @ rounded.T
    assert np.abs(heard - truth).max() < 1e-4
    # The next one starts from the float model again.
    assert np.abs(quantizer.float_session().run(None, {"x": x})[0] - np.square(np.sin(x @ w.T)) @ w.T).max() < 1e-4


def test_each_direction_of_an_lstm_has_scales_of_its_own() -> None:
    """W is [directions, 4 hidden, inputs]: one scale for a row of both directions would round the quiet one away."""
    rng = np.random.default_rng(2)
    hidden, inputs = 4, 8
    w = rng.standard_normal((2, 4 * hidden, inputs)).astype(np.float32)
    w[1] /= 200  # half a step of the other direction's grid
    r = np.zeros((2, 4 * hidden, hidden), np.float32)
    node = helper.make_node(
        "LSTM", ["x", "w", "r"], ["y"], name="/lstm/LSTM", hidden_size=hidden, direction="bidirectional"
    )
    graph = helper.make_graph(
        [node],
        "lstm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 1, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2, 1, hidden])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(r, "r")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (part,) = analysis.weight_parts(model)
    assert part.weights == {"w": (0, 1), "r": (0, 1)}
    quantizer = PartQuantizer(model)
    x = {"x": rng.standard_normal((3, 1, inputs)).astype(np.float32)}
    truth, heard = (s.run(None, x)[0] for s in (quantizer.float_session(), quantizer.session(part, 8, {})))
    for direction in range(2):
        assert metrics.snr_db(truth[:, direction].ravel(), heard[:, direction].ravel()) > 30


def test_activations_of_one_module_are_quantized() -> None:
    w, x = _weight(), _input()
    quantizer, part = PartQuantizer(_model()), analysis.activation_parts(_model())[0]
    ranges = measure(_model(), [{"x": x}, {"x": np.zeros_like(x)}])

    def quantized(value: np.ndarray, name: str) -> np.ndarray:
        low, high = ranges[name]
        scale = np.float32((high - low) / 255)
        zero = round(-low / scale)
        result: np.ndarray = (np.clip(np.round(value / scale) + zero, 0, 255) - zero) * scale
        return result

    a = x @ w.T
    assert ranges["a"] == pytest.approx((min(a.min(), 0), max(a.max(), 0)), rel=1e-5)  # the second sample's are 0
    s = quantized(np.sin(quantized(a, "a")), "s")
    truth = quantized(s * s, "m") @ w.T
    heard = quantizer.session(part, 8, ranges).run(None, {"x": x})[0]
    assert np.abs(heard - truth).max() < 0.02 * np.abs(truth).max()
    exact = np.square(np.sin(a)) @ w.T
    assert np.abs(heard - exact).max() > 5e-3 * np.abs(truth).max()


PARTS = [Part(f"/{n}", "Conv", {"w": (0,)}, (), n) for n in range(4)]


def _counted(calls: list[str], die_at: str = "") -> list[tuple[Part, Callable[[], tuple[float, float]]]]:
    def measure(part: Part) -> tuple[float, float]:
        if part.node == die_at:
            raise KeyboardInterrupt
        calls.append(part.node)
        return 0.125, 30.0 + part.params

    return [(part, partial(measure, part)) for part in PARTS]


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    kept, calls = tmp_path / "partial.json", list[str]()
    with pytest.raises(KeyboardInterrupt):
        analysis.analyze(_counted(calls, die_at="/2"), kept, "a")
    assert calls == ["/0", "/1"]
    table = analysis.analyze(_counted(calls), kept, "a")
    assert calls == ["/0", "/1", "/2", "/3"]
    assert table == [Sensitivity(f"/{n}", "Conv", 0.125, 30.0 + n, n, 4 * n) for n in range(4)]
    # Other models or settings: nothing of it holds.
    analysis.analyze(_counted(calls), kept, "b")
    assert len(calls) == 8


def test_the_csv_has_the_columns_of_kokoro_onnx_export_and_survives(tmp_path: Path) -> None:
    table = [Sensitivity("/a,b", "Conv", 0.25, 31.5, 7, 28), Sensitivity("/c", "Sin", 0.0, float("inf"), 0, 0)]
    write_table(tmp_path / "table.csv", pd.DataFrame(table))
    assert (tmp_path / "table.csv").read_text().splitlines()[0] == "name,op_type,mel_distance,snr_db,params,size"
    assert list(read_sensitivities(tmp_path / "table.csv").values()) == table


def test_one_name_for_two_parts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match="/0 names two parts"):
        analysis.analyze([*_counted([]), *_counted([])], tmp_path / "partial.json", "a")


def test_what_the_mel_distance_misses_is_named() -> None:
    results = [
        Sensitivity("/fine", "Conv", 0.01, 50.0, 1_000_000, 4_000_000),
        Sensitivity("/loud", "Conv", 0.9, 35.0, 1_000_000, 4_000_000),
        Sensitivity("/static", "Conv", 0.1, 41.0, 10_000, 40_000),  # for a megabyte 21 dB
        Sensitivity("/more static", "Conv", 0.1, 41.0, 1_000, 4_000),
        Sensitivity("/norm", "InstanceNormalization", 0.1, 10.0, 0, 0),  # no weights, no bytes to spend on them
    ]
    report = analysis.summarize(results, floor=0.5, audible_snr_db=45.0)
    assert report["missed_by_mel"] == ["/more static", "/static"]
    assert report["seen_by_mel"] == ["/loud"]
    assert (report["parts"], report["weight_parts"], report["mel_distance_floor"]) == (5, 4, 0.5)
    # With nothing drawn anew, the distance sees them all.
    assert analysis.summarize(results, floor=0.0, audible_snr_db=45.0)["missed_by_mel"] == []


def test_patterns_match_the_chosen_and_no_other() -> None:
    names = ["/a/x/Conv", "/a/y/Conv", "/b/x/Conv", "/b/y.1/Conv", "/b/y.2/Conv", "/c/Conv"]
    chosen = {"/a/x/Conv", "/a/y/Conv", "/b/y.1/Conv", "/c/Conv"}
    found = patterns(names, chosen)
    assert [pattern for pattern, _ in found] == ["/a/*", "/b/y.1/Conv", "/c/Conv"]
    assert {n for n in names if any(fnmatchcase(n, pattern) for pattern, _ in found)} == chosen
    assert patterns(names, set()) == []


THRESHOLDS = RecipeThresholds(weights_snr_db=40, weights_mel_distance=0.2, activations_snr_db=60, float_snr_db=10)


def test_a_recipe_follows_the_thresholds() -> None:
    model = export_decoder(narrow_kmodel(1, kernels=(3,)), Bucket(2))
    parts = [*analysis.weight_parts(model), *analysis.activation_parts(model)]
    table = {
        part.node: Sensitivity(part.node, part.op_type, 0.1, 50.0, 1_000_000 if part.weights else 0, 0)
        for part in parts
    }
    # For a megabyte, 50 dB are enough; for 1e-3 of one, they are not: -30 dB.
    small = next(part.node for part in parts if part.weights)
    dull = next(part.node for part in parts if part.weights and part.node != small)
    noisy = next(part.node for part in parts if part.op_type == "InstanceNormalization")
    fine = next(part.node for part in parts if part.op_type == "Sin")
    table[small] = replace(table[small], params=1_000)
    # The noise of this one is where the log-mel distance looks.
    table[dull] = replace(table[dull], mel_distance=0.25)
    table[noisy] = replace(table[noisy], snr_db=9.0)
    table[fine] = replace(table[fine], snr_db=60.0)
    preset = {node.name: NodePrecision(8, 16) for node in model.graph.node}
    precisions = resolve(model, preset, derive(model, table, THRESHOLDS))
    assert {node.name for node in weighted_nodes(model) if precisions[node.name].weights == 16} == {small, dull}
    assert {name for name, one in precisions.items() if one.float} == {
        name for name in precisions if name.startswith(f"{noisy.rpartition('/')[0]}/")
    }
    assert precisions[fine].activations == 8


def test_the_committed_recipe_follows_from_the_committed_table() -> None:
    """The narrow model has the node names of the real one."""
    options = yaml.safe_load((ROOT / "conf/config.yaml").read_text(encoding="utf-8"))["derive"]
    model = export_decoder(narrow_kmodel(1, kernels=(3, 7, 11)), Bucket(2))
    table = read_sensitivities(ROOT / "reports/sensitivity/sensitivity.csv")
    derived = derive(model, table, RecipeThresholds(**options["thresholds"]))
    fixed = load_overrides(ROOT / options["fixed_overrides"])
    assert (*derived, *fixed) == load_overrides(ROOT / "recipes/mixed.yaml")


def _recorded(frames: int) -> ReferenceUtterance:
    rng = np.random.default_rng(frames)
    tokens = np.array([[0, *rng.integers(1, 16, 6), 0]], np.int64)
    voice = 0.3 * rng.standard_normal((1, 256)).astype(np.float32)
    empty = np.zeros(0, np.float32)
    return ReferenceUtterance(f"cal-{frames}", frames, 1.0, 0, {}, empty, tokens, voice)


def test_the_three_models_are_analyzed_on_windows() -> None:
    kmodel = narrow_kmodel(1, kernels=(3,))
    duration, prosody = export_duration(kmodel), export_prosody(kmodel)
    first = _recorded(1)
    session = ort.InferenceSession(duration.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {
        "tokens": first.tokens,
        "token_length": np.array([8], np.int64),
        "voice_embedding": first.voice,
        "speed": np.ones(1, np.float32),
    }
    frames = int(session.run(["durations"], inputs)[0].sum())
    recorded = [replace(first, frames=frames)]
    window = min(frames, 6)
    bench = Bench(duration, prosody, export_decoder(kmodel, Bucket(window)), recorded, window, 8)
    assert 0 < bench.floor() < 20
    parts = {part.node: (part, measure) for part, measure in bench.parts()}
    ops = {part.op_type for part, _ in parts.values()}
    assert {"LSTM", "Gemm", "Conv", "ConvTranspose", "InstanceNormalization", "Sin", "Exp", "Gather"} <= ops
    for node in ("/lstms.0/LSTM", "/F0.0/conv1/Conv", "/generator/ups.0/ConvTranspose", "/generator/head/Exp"):
        mel, snr = parts[node][1]()
        assert 0 < mel < 20
        assert -5 < snr < 90


def test_windows_are_the_shortest_that_are_long_enough() -> None:
    recorded = [_recorded(frames) for frames in (5, 30, 10, 20)]
    assert [item.frames for item in choose_windows(recorded, 10, 2)] == [10, 20]
    with pytest.raises(KokoroNpuError, match="3 utterances hold a window of 10 frames, not 4"):
        choose_windows(recorded, 10, 4)
