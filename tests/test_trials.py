"""Trials: what they quantize, that nothing else changes, that a killed run resumes, and the recipe made of them."""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder, export_duration, export_prosody
from kokoro_npu.quantize.overrides import Settings, resolve, weighted_nodes
from kokoro_npu.sensitivity import analysis
from kokoro_npu.sensitivity.analysis import Bench, Case
from kokoro_npu.sensitivity.bench import TrialBench, choose_windows
from kokoro_npu.sensitivity.derive import Thresholds, derive, patterns
from kokoro_npu.sensitivity.table import Trial, read_trials, write_trials
from tests.narrow_model import narrow_kmodel

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


def test_every_weight_and_module_is_a_case() -> None:
    one, two = analysis.weight_cases(_model())
    assert one == Case("/one/Gemm", "Gemm", {"w": 0}, (), WIDTH * WIDTH)
    assert two.node == "/two/Gemm"
    # Inputs and outputs of the graph are no activations of a module.
    assert analysis.activation_cases(_model()) == [Case("/snake/Sin", "Sin", {}, ("a", "s", "m"), 0)]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_of_one_node_alone_is_on_its_grid(bits: int) -> None:
    w, x = _weight(), _input()
    step = np.abs(w).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    rounded = np.round(w / step) * step
    bench = Bench(_model())
    heard = bench.session(analysis.weight_cases(_model())[1], bits).run(None, {"x": x})[0]
    truth = np.square(np.sin(x @ w.T)) @ rounded.T
    assert np.abs(heard - truth).max() < 1e-4
    # The next one starts from the float model again.
    assert np.abs(bench.session().run(None, {"x": x})[0] - np.square(np.sin(x @ w.T)) @ w.T).max() < 1e-4


def test_activations_of_one_module_are_quantized() -> None:
    w, x = _weight(), _input()
    bench, case = Bench(_model()), analysis.activation_cases(_model())[0]
    ranges = bench.ranges(case.activations, [{"x": x}, {"x": np.zeros_like(x)}])

    def quantized(value: np.ndarray, name: str) -> np.ndarray:
        low, high = ranges[name]
        scale = np.float32((high - low) / 255)
        zero = round(-low / scale)
        result: np.ndarray = (np.clip(np.round(value / scale) + zero, 0, 255) - zero) * scale
        return result

    a = x @ w.T
    assert ranges["a"] == pytest.approx((min(a.min(), 0), max(a.max(), 0)), rel=1e-5)
    s = quantized(np.sin(quantized(a, "a")), "s")
    truth = quantized(s * s, "m") @ w.T
    heard = bench.session(case, ranges=ranges).run(None, {"x": x})[0]
    assert np.abs(heard - truth).max() < 0.02 * np.abs(truth).max()
    exact = np.square(np.sin(a)) @ w.T
    assert np.abs(heard - exact).max() > 5e-3 * np.abs(truth).max()


CASES = [Case(f"/{n}", "Conv", {"w": 0}, (), n) for n in range(4)]


def _counted(calls: list[str], die_at: str = "") -> list[tuple[Case, Callable[[], tuple[float, float]]]]:
    def measure(case: Case) -> tuple[float, float]:
        if case.node == die_at:
            raise KeyboardInterrupt
        calls.append(case.node)
        return 0.125, 30.0 + case.params

    return [(case, lambda case=case: measure(case)) for case in CASES]  # type: ignore[misc]


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    partial, calls = tmp_path / "partial.csv", list[str]()
    with pytest.raises(KeyboardInterrupt):
        analysis.run_trials(_counted(calls, die_at="/2"), partial, "a")
    assert calls == ["/0", "/1"]
    with open(partial, "a", encoding="utf-8") as stream:
        stream.write("/2,Conv,0.1")  # killed in the middle of a row
    results = analysis.run_trials(_counted(calls), partial, "a")
    assert calls == ["/0", "/1", "/2", "/3"]
    assert results == [Trial(f"/{n}", "Conv", 0.125, 30.0 + n, n, 4 * n) for n in range(4)]
    # Other models or settings: nothing of it holds.
    analysis.run_trials(_counted(calls), partial, "b")
    assert len(calls) == 8


def test_the_csv_has_seed_threes_columns_and_survives(tmp_path: Path) -> None:
    results = [Trial("/a,b", "Conv", 0.25, 31.5, 7, 28), Trial("/c", "Sin", 0.0, float("inf"), 0, 0)]
    write_trials(results, tmp_path / "trials.csv")
    assert (tmp_path / "trials.csv").read_text().splitlines()[0] == "name,op_type,mel_distance,snr_db,params,size"
    assert list(read_trials(tmp_path / "trials.csv").values()) == results


def test_one_name_for_two_parts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match="/0 names two parts"):
        analysis.run_trials([*_counted([]), *_counted([])], tmp_path / "partial.csv", "a")


def test_what_the_mel_distance_misses_is_named() -> None:
    results = [
        Trial("/fine", "Conv", 0.01, 50.0, 1_000_000, 4_000_000),
        Trial("/loud", "Conv", 0.9, 35.0, 1_000_000, 4_000_000),
        Trial("/static", "Conv", 0.1, 41.0, 10_000, 40_000),  # for a megabyte 21 dB
        Trial("/more static", "Conv", 0.1, 41.0, 1_000, 4_000),
        Trial("/norm", "InstanceNormalization", 0.1, 10.0, 0, 0),  # no weights, no bytes to spend on them
    ]
    report = analysis.summarize(results, floor=0.5, audible_snr_db=45.0)
    assert report["missed_by_mel"] == ["/more static", "/static"]
    assert report["seen_by_mel"] == ["/loud"]
    assert (report["trials"], report["weight_trials"], report["mel_distance_floor"]) == (5, 4, 0.5)
    # With nothing drawn anew, the distance sees them all.
    assert analysis.summarize(results, floor=0.0, audible_snr_db=45.0)["missed_by_mel"] == []


def test_patterns_match_the_chosen_and_no_other() -> None:
    names = ["/a/x/Conv", "/a/y/Conv", "/b/x/Conv", "/b/y.1/Conv", "/b/y.2/Conv", "/c/Conv"]
    chosen = {"/a/x/Conv", "/a/y/Conv", "/b/y.1/Conv", "/c/Conv"}
    found = patterns(names, chosen)
    assert [pattern for pattern, _ in found] == ["/a/*", "/b/y.1/Conv", "/c/Conv"]
    assert {n for n in names if any(fnmatchcase(n, pattern) for pattern, _ in found)} == chosen
    assert patterns(names, set()) == []


THRESHOLDS = Thresholds(weights_snr_db=40, weights_mel_distance=0.2, activations_snr_db=60, float_snr_db=10)


def test_a_recipe_follows_the_thresholds() -> None:
    model = export_decoder(narrow_kmodel(1, kernels=(3,)), Bucket(2))
    cases = [*analysis.weight_cases(model), *analysis.activation_cases(model)]
    results = {case.node: Trial(case.node, case.op_type, 0.1, 50.0, case.params, 4 * case.params) for case in cases}
    # For a megabyte, 50 dB are enough; for 1e-3 of one, they are not: -30 dB.
    small = next(case.node for case in cases if case.weights)
    dull = next(case.node for case in cases if case.weights and case.node != small)
    noisy = next(case.node for case in cases if case.op_type == "InstanceNormalization")
    fine = next(case.node for case in cases if case.op_type == "Sin")
    for case in cases:
        results[case.node] = replace(results[case.node], params=1_000_000 if case.weights else 0)
    results[small] = replace(results[small], params=1_000)
    # The noise of this one is where the log-mel distance looks.
    results[dull] = replace(results[dull], mel_distance=0.25)
    results[noisy] = replace(results[noisy], snr_db=9.0)
    results[fine] = replace(results[fine], snr_db=60.0)
    settings = resolve(model, Settings(8, 16), derive(model, results, THRESHOLDS))
    wide = {node.name for node in weighted_nodes(model) if settings[node.name].weights == 16}
    assert wide == {small, dull}
    assert {name for name, one in settings.items() if one.float and name.rpartition("/")[0] == noisy.rpartition("/")[0]}
    assert settings[fine].activations == 8


def _recorded(frames: int) -> ReferenceUtterance:
    rng = np.random.default_rng(frames)
    tokens = np.array([[0, *rng.integers(1, 16, 6), 0]], np.int64)
    voice = 0.3 * rng.standard_normal((1, 256)).astype(np.float32)
    empty = np.zeros(0, np.float32)
    return ReferenceUtterance(f"cal-{frames}", "calibration", frames, 1.0, 0, {}, empty, tokens, voice)


def test_the_three_models_are_tried_on_windows() -> None:
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
    bench = TrialBench(duration, prosody, export_decoder(kmodel, Bucket(window)), recorded, window, 8)
    assert 0 < bench.floor() < 20
    cases = {case.node: (case, measure) for case, measure in bench.trials()}
    ops = [case.op_type for case, _ in cases.values()]
    assert {"LSTM", "Gemm", "Conv", "ConvTranspose", "InstanceNormalization", "Sin", "Exp", "Gather"} <= set(ops)
    for node in ("/lstms.0/LSTM", "/F0.0/conv1/Conv", "/generator/ups.0/ConvTranspose", "/generator/head/Exp"):
        mel, snr = cases[node][1]()
        assert 0 < mel < 20
        assert -5 < snr < 90


def test_windows_are_the_shortest_that_are_long_enough() -> None:
    recorded = [_recorded(frames) for frames in (5, 30, 10, 20)]
    assert [item.frames for item in choose_windows(recorded, 10, 2)] == [10, 20]
    with pytest.raises(KokoroNpuError, match="3 utterances hold a window of 10 frames, not 4"):
        choose_windows(recorded, 10, 4)
