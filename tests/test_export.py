"""What the ONNX files are: static decoders that share names and weights, and CPU models that follow torch."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from kokoro import KModel
from onnx import TensorProto, numpy_helper

from kokoro_npu.audio import metrics
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import parity
from kokoro_npu.files import sha256, write_onnx
from kokoro_npu.geometry import PROSODY_DIM, SAMPLES_PER_FRAME, STYLE_DIM, VOICE_DIM, Bucket
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.graphs.shared_weights import MIN_BYTES, Pack
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.host.source_noise import corpus_noise
from kokoro_npu.host.steps import pad_to_bucket, trim
from kokoro_npu.model import duration, prosody, reference
from kokoro_npu.model.duration import DurationModel
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.model.prosody import ProsodyModel
from kokoro_npu.quantize.encodings import COPIES
from tests.narrow_model import random_features

FRAMES = (16, 24)
OPSET = 17


@pytest.fixture(scope="module")
def decoders(narrow: KModel) -> dict[int, onnx.ModelProto]:
    """Decoders with their weights inside, by frames."""
    return {frames: export_decoder(narrow, Bucket(frames), OPSET) for frames in FRAMES}


@pytest.fixture(scope="module")
def packed(decoders: dict[int, onnx.ModelProto], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same as files that share one pack, which the first wrote."""
    directory = tmp_path_factory.mktemp("packed")
    pack = Pack.write(decoders[FRAMES[0]], directory / "kokoro_decoder.weights")
    paths = {}
    for frames, model in decoders.items():
        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        paths[frames] = directory / f"kokoro_decoder_{frames}.onnx"
        Pack.open(pack.path).save(copied, paths[frames])
    return paths


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in value.type.tensor_type.shape.dim
    )


def _values(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*model.graph.input, *model.graph.value_info, *model.graph.output)


@pytest.mark.parametrize("frames", FRAMES)
def test_inputs_and_outputs_are_the_contracts(decoders: dict[int, onnx.ModelProto], frames: int) -> None:
    graph = decoders[frames].graph
    assert {v.name: _shape(v) for v in graph.input} == Bucket(frames).input_shapes
    assert [v.name for v in graph.input] == list(Bucket(frames).input_shapes)
    assert {v.name: _shape(v) for v in graph.output} == Bucket(frames).output_shapes
    assert {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)} == {TensorProto.FLOAT}


@pytest.mark.parametrize("frames", FRAMES)
def test_every_dimension_is_an_integer(decoders: dict[int, onnx.ModelProto], frames: int) -> None:
    inferred = onnx.shape_inference.infer_shapes(decoders[frames], check_type=True, strict_mode=True, data_prop=True)
    shapes = {value.name: _shape(value) for value in _values(inferred)}
    made = {name for node in inferred.graph.node for name in node.output}
    assert made <= set(shapes), "a tensor of unknown shape"
    dynamic = {name: s for name, s in shapes.items() if not all(isinstance(d, int) and d > 0 for d in s)}
    assert dynamic == {}


FORBIDDEN = {
    "control flow": {"If", "Loop", "Scan"},
    "random": {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"},
    "sequence": {"SequenceConstruct", "SequenceAt", "SequenceEmpty", "SplitToSequence", "ConcatFromSequence"},
    "shape": {"Shape", "NonZero", "Range", "Where", "ScatterND", "GatherND", "CumSum"},
    "wrong or unknown on HTP": {"Pow", "Resize", "Reciprocal", "Upsample", "STFT", "Atan", "LSTM", "Einsum", "Pad"},
}


def test_no_op_that_an_npu_cannot_run(decoders: dict[int, onnx.ModelProto]) -> None:
    present = {node.op_type for node in decoders[FRAMES[0]].graph.node}
    assert {kind: found for kind, ops in FORBIDDEN.items() if (found := ops & present)} == {}
    assert {node.domain for node in decoders[FRAMES[0]].graph.node} == {""}
    assert not any(attribute.HasField("g") for node in decoders[FRAMES[0]].graph.node for attribute in node.attribute)
    assert len(decoders[FRAMES[0]].functions) == 0


def test_no_wide_slice(decoders: dict[int, onnx.ModelProto]) -> None:
    """A slice at the generator's rates fails to compile beyond 65,535 columns, but for the last one of the audio."""
    model = onnx.shape_inference.infer_shapes(decoders[24])
    shapes = {value.name: _shape(value) for value in _values(model)}
    wide = [
        node.output[0]
        for node in model.graph.node
        if node.op_type in ("Slice", "Split", "Gather")
        and int(shapes[node.output[0]][-1]) > 20 * 24
        and not node.name.startswith("/affines.")  # over the norms' channels, and not over time
    ]
    assert wide == ["audio"]


def test_no_depthwise_transposed_convolution(decoders: dict[int, onnx.ModelProto]) -> None:
    groups = [
        next((a.i for a in node.attribute if a.name == "group"), 1)
        for node in decoders[16].graph.node
        if node.op_type == "ConvTranspose"
    ]
    assert groups == [1, 1]


def test_names_are_the_same_in_every_bucket(decoders: dict[int, onnx.ModelProto]) -> None:
    one, other = (model.graph for model in decoders.values())
    assert [(n.name, n.op_type, list(n.input), list(n.output)) for n in one.node] == [
        (n.name, n.op_type, list(n.input), list(n.output)) for n in other.node
    ]
    assert [t.name for t in one.initializer] == [t.name for t in other.initializer]
    assert all(node.name for node in one.node)
    assert len({node.name for node in one.node}) == len(one.node)
    # What quantization leaves floating is found by its scope.
    assert any(node.name.startswith("/generator/head/") for node in one.node)


@pytest.mark.parametrize("rows", [2, 4])
def test_rows_change_no_name_of_what_is_computed(
    narrow: KModel, decoders: dict[int, onnx.ModelProto], rows: int
) -> None:
    """Encodings are measured unfolded, and found by the tensor's name."""
    plain = decoders[min(decoders)]
    folded = export_decoder(narrow, Bucket(min(decoders)), rows=rows)

    def computed(model: onnx.ModelProto) -> list[tuple[str, str, list[str]]]:
        nodes = (node for node in model.graph.node if node.op_type not in {*COPIES, "Constant"})
        return [(node.op_type, node.name, list(node.output)) for node in nodes]

    assert len(folded.graph.node) > len(plain.graph.node)
    assert computed(folded) == computed(plain)


def test_nothing_in_the_file_tells_where_it_was_made(decoders: dict[int, onnx.ModelProto]) -> None:
    data = decoders[16].SerializeToString()
    for trace in (b"site-packages", b"kokoro_npu/", b"/work/", b".py"):
        assert trace not in data, trace


@pytest.mark.parametrize("opset", [17, 18])
def test_opset_as_asked(narrow: KModel, tmp_path: Path, opset: int) -> None:
    model = export_decoder(narrow, Bucket(4), opset)
    assert [(o.domain, o.version) for o in model.opset_import if not o.domain] == [("", opset)]
    onnx.checker.check_model(model, full_check=True)
    features = random_features(3, seed=0)
    write_onnx(tmp_path / "decoder.onnx", model)
    audio = trim(parity.onnx_variant(tmp_path / "decoder.onnx")(pad_to_bucket(features, Bucket(4))), 3)
    assert metrics.snr_db(reference.decode(narrow.decoder, features), audio) >= 85


# Weights stored once.


def test_packed_bytes_are_the_originals(decoders: dict[int, onnx.ModelProto], packed: dict[int, Path]) -> None:
    for frames, path in packed.items():
        original = {t.name: numpy_helper.to_array(t) for t in decoders[frames].graph.initializer}
        loaded = onnx.load(path)
        restored = {t.name: numpy_helper.to_array(t) for t in loaded.graph.initializer}
        assert list(restored) == list(original)
        for name, value in original.items():
            assert value.dtype == restored[name].dtype
            assert value.tobytes() == restored[name].tobytes(), name


def test_large_weights_are_outside_and_stored_once(packed: dict[int, Path]) -> None:
    places = []
    for path in packed.values():
        model = onnx.load(path, load_external_data=False)
        found = {}
        for tensor in model.graph.initializer:
            inside = len(tensor.raw_data) or tensor.ByteSize()
            if tensor.data_location == TensorProto.EXTERNAL:
                entries = {entry.key: entry.value for entry in tensor.external_data}
                found[tensor.name] = (entries["location"], int(entries["offset"]), int(entries["length"]))
                assert not tensor.raw_data
            else:
                assert inside < MIN_BYTES + 200, tensor.name
        places.append(found)
    assert places[0] == places[1]
    assert {location for location, _, _ in places[0].values()} == {"kokoro_decoder.weights"}
    assert all(offset % 4096 == 0 for _, offset, _ in places[0].values())
    pack = packed[16].parent / "kokoro_decoder.weights"
    end = max(offset + length for _, offset, length in places[0].values())
    assert pack.stat().st_size == end


def test_a_changed_weight_is_refused_by_name(decoders: dict[int, onnx.ModelProto], packed: dict[int, Path]) -> None:
    other = onnx.ModelProto()
    other.CopyFrom(decoders[16])
    tensor = max(other.graph.initializer, key=lambda t: t.ByteSize())
    changed = numpy_helper.to_array(tensor).copy()
    changed.flat[7] = np.nextafter(changed.flat[7], np.float32(2))
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    pack = Pack.open(packed[16].parent / "kokoro_decoder.weights")
    target = pack.path.parent / "kokoro_decoder_changed.onnx"
    with pytest.raises(KokoroNpuError, match="run the stage that writes it again") as caught:
        pack.save(other, target)
    assert f"weight {tensor.name} [" in str(caught.value)
    assert not target.exists()


@pytest.mark.parametrize(("frames", "size"), [(16, 16), (5, 16), (24, 24), (8, 24)])
def test_packed_decoders_run_and_are_exact(narrow: KModel, packed: dict[int, Path], frames: int, size: int) -> None:
    features = random_features(frames, seed=frames)
    audio = trim(parity.onnx_variant(packed[size])(pad_to_bucket(features, Bucket(size))), frames)
    assert metrics.snr_db(reference.decode(narrow.decoder, features), audio) >= 85


def test_a_second_export_has_the_same_bytes(
    narrow: KModel, decoders: dict[int, onnx.ModelProto], packed: dict[int, Path], tmp_path: Path
) -> None:
    again = export_decoder(narrow, Bucket(16), OPSET)
    assert again.SerializeToString(deterministic=True) == decoders[16].SerializeToString(deterministic=True)
    pack = Pack.write(again, tmp_path / "kokoro_decoder.weights")
    pack.save(again, tmp_path / "kokoro_decoder_16.onnx")
    first = packed[16].parent
    for name in ("kokoro_decoder.weights", "kokoro_decoder.weights.json", "kokoro_decoder_16.onnx"):
        assert sha256(tmp_path / name) == sha256(first / name), name


# The CPU models.


@pytest.fixture(scope="module")
def cpu_models(narrow: KModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("cpu")
    paths = {name: directory / f"kokoro_{name}.onnx" for name in ("duration", "prosody")}
    write_onnx(paths["duration"], export_duration(narrow, OPSET))
    write_onnx(paths["prosody"], export_prosody(narrow, OPSET))
    return paths


def _signature(path: Path) -> tuple[dict[str, tuple[str, list[int | str]]], dict[str, tuple[str, list[int | str]]]]:
    session = cpu_session(path)
    inputs, outputs = (
        {v.name: (v.type, list(v.shape)) for v in x} for x in (session.get_inputs(), session.get_outputs())
    )
    return inputs, outputs


def test_duration_contract(cpu_models: dict[str, Path]) -> None:
    inputs, outputs = _signature(cpu_models["duration"])
    assert inputs == {
        "tokens": ("tensor(int64)", [1, "token_count"]),
        "token_length": ("tensor(int64)", [1]),
        "voice_embedding": ("tensor(float)", [1, 256]),
        "speed": ("tensor(float)", [1]),
    }
    assert {name: kind for name, (kind, _) in outputs.items()} == {
        "durations": "tensor(int32)",
        "encoded_text": "tensor(float)",
        "ref_style": "tensor(float)",
        "prosody_features": "tensor(float)",
        "prosody_style": "tensor(float)",
    }
    assert outputs["durations"][1] == [1, "token_count"]
    assert outputs["encoded_text"][1][::2] == [1, 512]
    assert outputs["prosody_features"][1][::2] == [1, 640]
    assert list(inputs) == ["tokens", "token_length", "voice_embedding", "speed"]
    assert tuple(outputs) == duration.OUTPUT_NAMES
    assert _opset(cpu_models["duration"]) == OPSET


def test_prosody_contract(cpu_models: dict[str, Path]) -> None:
    inputs, outputs = _signature(cpu_models["prosody"])
    assert inputs == {
        "aligned_prosody": ("tensor(float)", [1, 640, "frames"]),
        "prosody_style": ("tensor(float)", [1, 128]),
        "source_noise": ("tensor(float)", [1, 1, "samples"]),
    }
    assert list(inputs) == ["aligned_prosody", "prosody_style", "source_noise"]
    assert tuple(outputs) == prosody.OUTPUT_NAMES
    assert {kind for kind, _ in outputs.values()} == {"tensor(float)"}
    assert outputs["noise"][1][1] == 22
    assert _opset(cpu_models["prosody"]) == OPSET


def _opset(path: Path) -> int:
    return {o.domain: o.version for o in onnx.load(path, load_external_data=False).opset_import}[""]


@pytest.mark.parametrize("path", ["duration", "prosody"])
def test_cpu_models_have_no_random_op(cpu_models: dict[str, Path], path: str) -> None:
    present = {node.op_type for node in onnx.load(cpu_models[path]).graph.node}
    assert not present & FORBIDDEN["random"]


@pytest.mark.parametrize(("count", "padding"), [(3, 0), (16, 0), (40, 0), (7, 1), (16, 30)])
def test_duration_onnx_follows_torch(narrow: KModel, cpu_models: dict[str, Path], count: int, padding: int) -> None:
    rng = np.random.default_rng(count)
    tokens = np.zeros((1, count + padding), np.int64)
    tokens[0, 1 : count - 1] = rng.integers(1, 10, count - 2)
    tokens[0, count:] = 5
    inputs: dict[str, np.ndarray] = {
        "tokens": tokens,
        "token_length": np.array([count]),
        "voice_embedding": (0.3 * rng.standard_normal((1, VOICE_DIM))).astype(np.float32),
        "speed": np.array([0.8], np.float32),
    }
    got = cpu_session(cpu_models["duration"]).run(None, inputs)
    with torch.inference_mode():
        truth = DurationModel(narrow)(*(torch.from_numpy(value) for value in inputs.values()))
    for name, ours, theirs in zip(duration.OUTPUT_NAMES, got, truth, strict=True):
        assert ours.shape == tuple(theirs.shape), name
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=2e-5, err_msg=name)
    assert not got[0][:, count:].any()


@pytest.mark.parametrize("frames", [2, 8, 37])
def test_prosody_onnx_follows_torch(narrow: KModel, cpu_models: dict[str, Path], frames: int) -> None:
    rng = np.random.default_rng(frames)
    inputs = {
        "aligned_prosody": rng.standard_normal((1, PROSODY_DIM, frames), dtype=np.float32),
        "prosody_style": 0.3 * rng.standard_normal((1, STYLE_DIM), dtype=np.float32),
        "source_noise": rng.standard_normal((1, 1, SAMPLES_PER_FRAME * frames), dtype=np.float32),
    }
    f0, energy, noise = cpu_session(cpu_models["prosody"]).run(None, inputs)
    with torch.inference_mode():
        model = ProsodyModel(narrow)
        their_f0, their_energy, _ = model(*(torch.from_numpy(value) for value in inputs.values()))
        # The same F0 for both: a rounding of F0 turns into a phase that grows.
        magnitude, phase = model.source(torch.from_numpy(f0), torch.from_numpy(inputs["source_noise"])).chunk(2, dim=1)
    np.testing.assert_allclose(f0, their_f0.numpy(), rtol=0, atol=0.1)
    np.testing.assert_allclose(energy, their_energy.numpy(), rtol=0, atol=1e-4)
    assert noise.shape == (1, 22, Bucket(frames).noise_steps)
    assert not noise[..., -7:].any()
    ours = noise[:, :11, :-7] * np.exp(1j * noise[:, 11:, :-7])
    theirs = (magnitude * torch.exp(1j * phase)).numpy()
    assert float(np.abs(ours - theirs).max() / np.abs(theirs).max()) < 1e-3


def test_frontend_joins_them(narrow: KModel, cpu_models: dict[str, Path]) -> None:
    """Tokens to decoder features; the same generator gives the same source, another one another."""
    frontend = Frontend(cpu_models["duration"], cpu_models["prosody"])
    tokens = np.array([[0, 3, 1, 4, 1, 5, 0]])
    voice = (0.3 * np.random.default_rng(0).standard_normal((1, VOICE_DIM))).astype(np.float32)
    first, same, other = (frontend.prepare(tokens, voice, 1.0, corpus_noise(seed)) for seed in (1, 1, 2))
    bucket = Bucket(first.frames)
    assert {name: value.shape for name, value in first.features.items()} == {
        name: shape for name, shape in bucket.input_shapes.items() if name not in ("frame_mask", "frame_ratio")
    }
    assert np.array_equal(first.features["ref_style"], voice[:, :STYLE_DIM])
    assert all(np.array_equal(first.features[name], same.features[name]) for name in first.features)
    changed = [name for name in first.features if not np.array_equal(first.features[name], other.features[name])]
    assert changed == ["noise"]
    # Upstream's whole model, given this source, is what upstream's decoder makes of these features.
    audio, durations = reference.synthesize(narrow, tokens, voice, 1.0, first.features["noise"], first.frames)
    assert durations.tolist() == first.durations[0].tolist()
    assert metrics.snr_db(audio, reference.decode(narrow.decoder, first.features)) >= 60


def test_a_source_of_another_length_is_one_line(narrow: KModel, cpu_models: dict[str, Path]) -> None:
    frontend = Frontend(cpu_models["duration"], cpu_models["prosody"])
    tokens = np.array([[0, 3, 1, 4, 0]])
    voice = np.zeros((1, VOICE_DIM), np.float32)
    prepared = frontend.prepare(tokens, voice, 1.0, corpus_noise(0))
    with pytest.raises(KokoroNpuError, match=f"do not sum to the {prepared.frames} frames") as caught:
        reference.synthesize(narrow, tokens, voice, 0.5, prepared.features["noise"], prepared.frames)
    assert "\n" not in str(caught.value)
