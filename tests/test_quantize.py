"""Quantization: encodings of one bucket for another, what stays float, types, and bytes that repeat."""

import fnmatch
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import yaml
from kokoro import KModel
from onnx import TensorProto

from kokoro_npu.audio import metrics
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import parity
from kokoro_npu.files import read_json, write_json
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.host.steps import pad_to_bucket, trim
from kokoro_npu.model import reference
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.calibrate import calibrate, calibrate_decoder, calibration_samples
from kokoro_npu.quantize.encodings import COPIES, copied, load_ranges
from kokoro_npu.quantize.overrides import NodePrecision, Override, load_overrides, weighted_nodes
from kokoro_npu.quantize.recipe import HEAD, Calibration, Recipe
from tests.narrow_model import narrow_kmodel, random_features
from tests.small_graphs import INPUTS, decoder_like

ROOT = Path(__file__).resolve().parents[1]
CALIBRATED, OTHER = (Bucket(10), Bucket(16)), Bucket(24)
CALIBRATION = Calibration(frames=(16, 10), short_windows=(5, 3), headroom=1.5)
W8A16 = Recipe("w8a16", 16, 8, True, CALIBRATION, overrides=load_overrides(ROOT / "recipes/w8a16.yaml"))
W8A8 = replace(W8A16, precision="w8a8", activation_bits=8)
FP16 = replace(W8A16, precision="fp16", float=True)


def recorded(frames: int) -> ReferenceUtterance:
    empty = np.zeros(0, np.float32)
    return ReferenceUtterance(
        id=f"cal-{frames}",
        frames=frames,
        speed=1.0,
        duration_mismatches=0,
        features=random_features(frames, seed=frames),
        reference=empty,
        tokens=np.zeros((1, 2), np.int64),
        voice=empty,
    )


RECORDED = [recorded(frames) for frames in (9, 13, 16)]


NAME = f"kokoro_decoder_{OTHER.frames}.onnx"


def build(out: Path) -> None:
    """What the stages decoder-weights, export-decoder, calibrate and quantize do, on the narrow model."""
    torch.set_num_threads(1)
    model = quantized_kmodel()
    decoders = {bucket: export_decoder(model, bucket) for bucket in (*CALIBRATED, OTHER)}
    Pack.write(decoders[CALIBRATED[0]], out / "decoder/kokoro_decoder.weights")
    calibrate_decoder(decoders.__getitem__, RECORDED, W8A16, out / "encodings.json")
    small = quantize_decoder(decoders[CALIBRATED[0]], W8A16, out / "encodings.json")
    Pack.write(small, out / "w8a16/kokoro_decoder.weights")
    Pack.open(out / "decoder/kokoro_decoder.weights").save(decoders[OTHER], out / "decoder" / NAME)
    quantized = quantize_decoder(onnx.load(out / "decoder" / NAME), W8A16, out / "encodings.json")
    Pack.open(out / "w8a16/kokoro_decoder.weights").save(quantized, out / "w8a16" / NAME)


def quantized_kmodel() -> KModel:
    return narrow_kmodel(1, kernels=(3,))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built")
    build(out)
    return out


@pytest.fixture
def model(built: Path) -> onnx.ModelProto:
    """The decoder of a bucket that was not calibrated; a test may change it."""
    return onnx.load(built / "decoder" / NAME)


@pytest.fixture(scope="module")
def encodings(built: Path) -> Path:
    return built / "encodings.json"


@pytest.fixture(scope="module")
def quantized(built: Path) -> dict[str, tuple[onnx.ModelProto, Path]]:
    """Each precision, with weights inside and as a file."""
    made = {"w8a16": (onnx.load(built / "w8a16" / NAME), built / "w8a16" / NAME)}
    for recipe in (W8A8, FP16):
        result = quantize_decoder(onnx.load(built / "decoder" / NAME), recipe, built / "encodings.json")
        path = built / f"{recipe.precision}.onnx"
        onnx.save(result, path)
        made[recipe.precision] = (result, path)
    return made


Quantized = dict[str, tuple[onnx.ModelProto, Path]]


@pytest.mark.parametrize(("precision", "at_least"), [("w8a16", 20.0), ("w8a8", -5.0), ("fp16", 40.0)])
def test_every_precision_runs_on_another_buckets_encodings(
    quantized: Quantized, precision: str, at_least: float
) -> None:
    truth = quantized_kmodel().decoder
    run = parity.onnx_variant(quantized[precision][1])
    for frames in (24, 10):
        features = random_features(frames, seed=77 + frames)
        audio = trim(run(pad_to_bucket(features, OTHER)), frames)
        assert audio.dtype == np.float32
        assert metrics.snr_db(reference.decode(truth, features), audio) >= at_least


def test_encodings_of_one_row_serve_several(built: Path, quantized: Quantized, tmp_path: Path) -> None:
    """A folded decoder moves the same numbers about: with the same encodings it sounds the same."""
    folded = quantize_decoder(export_decoder(quantized_kmodel(), OTHER, rows=4), W8A16, built / "encodings.json")
    onnx.save(folded, tmp_path / "folded.onnx")
    inputs = pad_to_bucket(random_features(20, seed=3), OTHER)
    plain, rows = (parity.onnx_variant(path)(inputs) for path in (quantized["w8a16"][1], tmp_path / "folded.onnx"))
    assert metrics.snr_db(plain.reshape(-1), rows.reshape(-1)) >= 60


@pytest.mark.parametrize("precision", ["w8a16", "w8a8", "fp16"])
def test_the_interface_stays(quantized: Quantized, precision: str) -> None:
    graph = quantized[precision][0].graph

    def shapes(values: Sequence[onnx.ValueInfoProto]) -> dict[str, tuple[int, ...]]:
        assert {value.type.tensor_type.elem_type for value in values} == {TensorProto.FLOAT}
        return {value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in values}

    assert shapes(graph.input) == OTHER.input_shapes
    assert shapes(graph.output) == OTHER.output_shapes
    assert graph.name == "kokoro_decoder_24"


def _producers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in model.graph.node for name in node.output}


def _initializers(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


@pytest.mark.parametrize(("precision", "activations"), [("w8a16", TensorProto.UINT16), ("w8a8", TensorProto.UINT8)])
def test_types_are_the_recipes(quantized: Quantized, precision: str, activations: int) -> None:
    model = quantized[precision][0]
    producers, initializers = _producers(model), _initializers(model)
    body = [
        n
        for n in model.graph.node
        if n.op_type in ("Conv", "ConvTranspose") and not n.name.startswith((HEAD, "/affines."))
    ]
    assert len(body) > 40
    for node in body:
        weight, activation = producers[node.input[1]], producers[node.input[0]]
        assert weight.op_type == activation.op_type == "DequantizeLinear", node.name
        stored, scales, zeros = (initializers[name] for name in weight.input)
        assert stored.data_type == TensorProto.INT8, node.name
        # Symmetric, one scale an output channel.
        assert not onnx.numpy_helper.to_array(zeros).any()
        axis = next(a.i for a in weight.attribute if a.name == "axis")
        assert axis == (1 if node.op_type == "ConvTranspose" else 0)
        assert tuple(scales.dims) == (stored.dims[axis],), node.name
        assert initializers[activation.input[2]].data_type == activations, node.name
        if len(node.input) > 2:
            assert initializers[producers[node.input[2]].input[0]].data_type == TensorProto.INT32, node.name
    # 16-bit Q/DQ came with opset 21.
    assert _opset(model) == (21 if precision == "w8a16" else 17)
    assert {node.domain for node in model.graph.node} == {""}


def _opset(model: onnx.ModelProto) -> int:
    return {o.domain: o.version for o in model.opset_import}[""]


def test_sixteen_bit_weights(model: onnx.ModelProto, encodings: Path) -> None:
    result = quantize_decoder(model, replace(W8A16, weight_bits=16, per_channel=False), encodings)
    producers, initializers = _producers(result), _initializers(result)
    node = next(n for n in result.graph.node if n.name == "/encode/conv1/Conv")
    stored, scales, _ = (initializers[name] for name in producers[node.input[1]].input)
    assert stored.data_type == TensorProto.INT16
    assert list(scales.dims) in ([], [1])


@pytest.mark.parametrize("precision", ["w8a16", "w8a8"])
def test_the_head_stays_float(model: onnx.ModelProto, quantized: Quantized, precision: str) -> None:
    result = quantized[precision][0]
    producers, initializers, before = _producers(result), _initializers(result), _initializers(model)
    head = [node for node in result.graph.node if node.name.startswith(HEAD) and node.op_type == "Conv"]
    assert len(head) == 4
    for node in head:
        assert node.input[1] in initializers
        assert initializers[node.input[1]].raw_data == before[node.input[1]].raw_data
        assert initializers[node.input[1]].data_type == TensorProto.FLOAT
    # No Q/DQ between the first op of the head and the audio.
    waiting, seen = ["audio"], set()
    while waiting:
        node = producers[waiting.pop()]
        assert node.op_type not in ("QuantizeLinear", "DequantizeLinear"), node.name
        seen.add(node.op_type)
        if node.name.startswith(f"{HEAD}post_") or not node.name.startswith(HEAD):
            continue
        waiting += [name for name in node.input if name in producers and producers[name].name.startswith(HEAD)]
    assert {"Exp", "Cos", "Sin", "Conv"} <= seen


def test_an_override_of_no_node_is_one_line(model: onnx.ModelProto, encodings: Path) -> None:
    strayed = replace(W8A16, overrides=(*W8A16.overrides, Override("/generator/haed/Exp", "why", float=True)))
    with pytest.raises(
        KokoroNpuError, match=r"'/generator/haed/Exp' matches no node .*; did you mean /generator/head/"
    ):
        quantize_decoder(model, strayed, encodings)


def test_a_missing_encoding_is_one_line(model: onnx.ModelProto, encodings: Path, tmp_path: Path) -> None:
    data = read_json(encodings)
    name = "/encode/conv1/Conv_output_0"
    ranges = data.get("data", data)
    assert ranges.pop(name)
    write_json(tmp_path / "encodings.json", data)
    with pytest.raises(KokoroNpuError, match="run the stage `calibrate` again") as caught:
        quantize_decoder(model, W8A16, tmp_path / "encodings.json")
    assert name in str(caught.value)
    assert "kokoro_decoder_24" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fp16_is_half_inside(quantized: Quantized) -> None:
    model = quantized["fp16"][0]
    kinds = {t.data_type for t in model.graph.initializer if t.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16)}
    assert kinds == {TensorProto.FLOAT16}
    # The casts stand at the inputs and the output only.
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    assert len(casts) == len(OTHER.input_shapes) + len(OTHER.output_shapes)
    assert "DequantizeLinear" not in {node.op_type for node in model.graph.node}


# Calibration.


def test_an_utterance_goes_to_the_smallest_bucket_that_holds_it() -> None:
    samples = calibration_samples(RECORDED, CALIBRATION)
    assert list(samples) == list(CALIBRATED)
    real = [[int(sample["frame_mask"].sum()) for sample in samples[bucket]] for bucket in CALIBRATED]
    # Short windows follow in the smallest.
    assert real == [[9, 5, 3], [13, 16]]
    for bucket, inputs in samples.items():
        assert all({name: value.shape for name, value in s.items()} == bucket.input_shapes for s in inputs)
    # What fits none is left out, and so is a bucket that would be empty.
    assert sum(map(len, calibration_samples(RECORDED, replace(CALIBRATION, frames=(10, 15))).values())) == 4
    assert list(calibration_samples(RECORDED, replace(CALIBRATION, frames=(10, 11, 16)))) == list(CALIBRATED)
    # They come from the middle of the first utterances.
    cut = samples[CALIBRATED[0]][1]["aligned_features"][:, :, :5]
    assert np.array_equal(cut, RECORDED[0].features["aligned_features"][:, :, 2:7])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": (8, 6)}, "no calibration utterance fits any of quantize.calibration.frames [8, 6]"),
        ({"short_windows": (5, 14)}, "short_windows: 14 frames exceed cal-13 (13 frames)"),
        ({"short_windows": (5, 11)}, "short_windows: 11 frames exceed cal-13 (13 frames) or the smallest bucket (10"),
    ],
)
def test_a_corpus_that_cannot_calibrate_is_one_line(change: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(KokoroNpuError) as caught:
        calibration_samples(RECORDED, replace(CALIBRATION, **change))  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def _drawn(seed: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [{name: rng.standard_normal(shape).astype(np.float32) for name, shape in INPUTS.items()} for _ in range(2)]


def _ranges(
    tmp_path: Path, headroom: float, *batches: list[dict[str, Array]], norm_headroom: float = 1.0
) -> dict[str, tuple[float, float]]:
    """Encodings of a small graph after the given batches."""
    model = onnx.load(decoder_like(tmp_path / "small.onnx"))
    calibration = replace(CALIBRATION, headroom=headroom, norm_headroom=norm_headroom)
    calibrate([(model, samples) for samples in batches], calibration, tmp_path / "encodings.json")
    return load_ranges(tmp_path / "encodings.json")


def test_headroom_widens_every_range(tmp_path: Path) -> None:
    plain, wide = _ranges(tmp_path, 1.0, _drawn(5)), _ranges(tmp_path, 1.5, _drawn(5))
    assert plain.keys() == wide.keys()
    assert {"x", "c1", "in1", "audio"} <= plain.keys()
    for name, (low, high) in plain.items():
        assert wide[name] == pytest.approx((1.5 * low, 1.5 * high), rel=1e-6), name


def test_what_norms_read_has_a_headroom_of_its_own(tmp_path: Path) -> None:
    model = onnx.load(decoder_like(tmp_path / "graph.onnx"))
    norms = {node.input[0] for node in model.graph.node if node.op_type == "InstanceNormalization"}
    plain, wide = _ranges(tmp_path, 1.5, _drawn(5)), _ranges(tmp_path, 1.5, _drawn(5), norm_headroom=2.0)
    assert norms <= plain.keys()
    for name, (low, high) in plain.items():
        factor = 2.0 if name in norms else 1.0
        assert wide[name] == pytest.approx((factor * low, factor * high), rel=1e-6), name


def test_ranges_are_those_of_the_samples(tmp_path: Path) -> None:
    values = np.stack([sample["x"] for sample in _drawn(5)])
    assert _ranges(tmp_path, 1.0, _drawn(5))["x"] == pytest.approx((values.min(), values.max()), rel=1e-6)


def test_ranges_of_all_buckets_are_joined(tmp_path: Path) -> None:
    """In any order."""
    one, other = (_ranges(tmp_path, 1.0, _drawn(seed)) for seed in (5, 6))
    both = _ranges(tmp_path, 1.0, _drawn(5), _drawn(6))
    assert both == _ranges(tmp_path, 1.0, _drawn(6), _drawn(5))
    for name, (low, high) in both.items():
        assert low == min(one[name][0], other[name][0]), name
        assert high == max(one[name][1], other[name][1]), name
    assert both not in (one, other)


def test_options_become_a_recipe() -> None:
    options = {
        "precision": "w8a8",
        "float": False,
        "activation_bits": 8,
        "weight_bits": 8,
        "per_channel": True,
        "recipe": ROOT / "recipes/w8a16.yaml",
        "calibration": {"frames": [16, 10], "short_windows": [5, 3], "headroom": 1.5},
        "gates": {"quantized_snr_db_min": 2.0},
    }
    assert Recipe.from_options(options) == W8A8
    assert Recipe.from_options(options | {"precision": "fp16", "activation_bits": 16, "float": True}) == FP16


@pytest.mark.parametrize("path", sorted((ROOT / "conf/quantize").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_preset_names_itself_and_a_recipe_that_fits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = Recipe.from_options(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert recipe.precision == path.stem
    precisions = recipe.node_precisions(export_decoder(narrow_kmodel(1, kernels=(3, 7, 11)), Bucket(2)))
    assert precisions["/generator/head/Exp"].float == (recipe.precision in ("w8a16", "mixed"))


def test_a_float_precision_has_no_encodings(tmp_path: Path) -> None:
    def decoder(bucket: Bucket) -> onnx.ModelProto:
        raise AssertionError(f"{bucket} was measured")

    calibrate_decoder(decoder, RECORDED, FP16, tmp_path / "encodings.json")
    assert read_json(tmp_path / "encodings.json") == {}


def test_calibration_sends_no_telemetry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ONNX Runtime sends it by default from the first session on: no session may come before the switch."""
    done: list[str] = []
    create, disable = ort.InferenceSession, ort.disable_telemetry_events

    def noting(event: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            done.append(event)
            return call(*arguments, **options)

        return noted

    monkeypatch.setattr(ort, "disable_telemetry_events", noting("off", disable))
    monkeypatch.setattr(ort, "InferenceSession", noting("session", create))
    _ranges(tmp_path, 1.0, _drawn(5))
    assert done == ["off", "session"]


# Bytes.

_BUILD = "import sys, pathlib; from tests.test_quantize import build; build(pathlib.Path(sys.argv[1]))"


def test_a_second_build_has_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """Export, pack, calibrate and quantize again, in a process whose sets of names have another order."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _BUILD, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == 7
    for file in files:
        assert (tmp_path / file).read_bytes() == (built / file).read_bytes(), file


# The committed recipes.


def test_the_mixed_recipe_beats_the_preset(model: onnx.ModelProto, built: Path, quantized: Quantized) -> None:
    # The narrow decoder has one residual block a rate; overrides for the others match nothing.
    names = [node.name for node in model.graph.node]
    overrides = [each for each in load_overrides(ROOT / "recipes/mixed.yaml") if fnmatch.filter(names, each.nodes)]
    assert len(overrides) >= 16
    mixed = replace(W8A16, precision="mixed", overrides=tuple(overrides))
    kmodel = quantized_kmodel()
    path = built / "mixed.onnx"
    onnx.save(quantize_decoder(model, mixed, built / "encodings.json"), path)
    features = random_features(24, seed=99)
    truth = reference.decode(kmodel.decoder, features)
    plain, better = (
        metrics.snr_db(truth, trim(parity.onnx_variant(file)(pad_to_bucket(features, OTHER)), 24))
        for file in (quantized["w8a16"][1], path)
    )
    assert better > plain + 3


def test_the_mixed_recipe_fits_a_decoder_with_the_real_kernels() -> None:
    model = export_decoder(narrow_kmodel(1, kernels=(3, 7, 11)), Bucket(2))
    mixed = replace(W8A16, overrides=load_overrides(ROOT / "recipes/mixed.yaml"))
    precisions = mixed.node_precisions(model)
    assert precisions["/decode.2/conv1/Conv"].weights == 8
    assert precisions["/generator/head/Exp"].float
    # An island of more than one op; the convolutions behind its norms are not part of it.
    assert precisions["/encode/norm1/Sub"].float
    assert precisions["/encode/conv1/Conv"] == NodePrecision(16, 16)
    wide = {node.name for node in weighted_nodes(model) if precisions[node.name].weights == 16}
    assert wide > {"/decode.3/conv1/Conv"}


def _reads(model: onnx.ModelProto, precisions: dict[str, NodePrecision]) -> dict[tuple[str, str], bool]:
    """Whether integers stand between each floating op and what floats that it reads, through copies of it."""
    producers = {output: node for node in model.graph.node for output in node.output}

    def sources(tensor: str) -> Iterator[tuple[str, bool]]:
        node = producers.get(tensor)
        if node is None or node.op_type not in COPIES:
            yield node.name if node else tensor, False
            return
        for name in copied(node):
            for source, integers in sources(name):
                yield source, integers or not precisions[node.name].float

    names = {tensor.name for tensor in model.graph.input}
    names |= {node.name for node in model.graph.node if node.op_type != "Constant" and precisions[node.name].float}
    found: dict[tuple[str, str], bool] = {}
    for node in model.graph.node:
        if precisions[node.name].float and node.op_type not in COPIES:
            for source, integers in (pair for tensor in node.input for pair in sources(tensor)):
                if source in names:
                    found[node.name, source] = found.get((node.name, source), False) or integers
    return found


def test_the_mixed_recipe_means_the_same_in_one_row_and_in_eight() -> None:
    """Numbers in names depend on the rows: `/Concat_4` was the entrance in one bucket, a piece of a mask in another."""
    kmodel = narrow_kmodel(1, kernels=(3, 7, 11))
    mixed = replace(W8A16, overrides=load_overrides(ROOT / "recipes/mixed.yaml"))
    one, eight = (export_decoder(kmodel, Bucket(8), rows=rows) for rows in (1, 8))
    precisions = [mixed.node_precisions(model) for model in (one, eight)]
    computing = [
        {n.name: n.op_type for n in m.graph.node if n.op_type not in {*COPIES, "Constant"}} for m in (one, eight)
    ]
    assert computing[0] == computing[1]
    assert {name for name in computing[0] if precisions[0][name] != precisions[1][name]} == set()
    reads = _reads(one, precisions[0])
    assert reads == _reads(eight, precisions[1])
    assert reads["/encode/norm1/Mul", "/f0_conv/Conv"] is False
