"""The public int8 monolith: what replacing its durations and source does, and the command that speaks with it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import soundfile
from click.testing import CliRunner
from kokoro import KModel
from onnx import TensorProto, helper

from kokoro_npu.build import places
from kokoro_npu.cli.main import cli
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import NOISE_TAIL, Bucket
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.host.source_noise import corpus_noise
from kokoro_npu.host.steps import pad_to_bucket, trim
from kokoro_npu.host.tokens import tokenize, voice_row
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.model.reference import synthesize
from kokoro_npu.variants.conversion import VARIANTS, write_variant
from kokoro_npu.variants.monolith import Monolith, predict_durations
from kokoro_npu.variants.whole_model import SplitModel, measured
from kokoro_npu.weights import canonical
from tests.conftest import DOWNLOADS

PHONEMES = "həlˈO, wˈɜːld!"
FRAMES = 96
PUBLISHED_BYTES = 82.39e6
"""Of the smallest model of kokoro-onnx-export, its MB read as 1,000,000 bytes; it counts in MiB, so it is 4 MB more."""


def test_another_graph_is_no_monolith(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["tokens"], ["audio"])],
        "not it",
        [helper.make_tensor_value_info("tokens", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("audio", TensorProto.FLOAT, [1])],
    )
    onnx.save(helper.make_model(graph), str(tmp_path / "m.onnx"))
    with pytest.raises(KokoroNpuError, match=r"m\.onnx: not the int8 monolith"):
        Monolith(tmp_path / "m.onnx")


@pytest.fixture(scope="module")
def monolith(real_weights: Path) -> Path:
    assert real_weights.is_dir()  # fetching it leaves the monolith among the downloads
    return DOWNLOADS / "kokoro-int8.onnx"


@pytest.fixture(scope="module")
def cpu(real_kmodel: KModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cpu")
    write_onnx(out / "kokoro_duration.onnx", export_duration(real_kmodel))
    write_onnx(out / "kokoro_prosody.onnx", export_prosody(real_kmodel))
    return out


@pytest.mark.weights
def test_given_its_own_durations_it_says_the_same_and_given_a_source_it_is_near_pytorch(
    monolith: Path, real_weights: Path, real_kmodel: KModel, cpu: Path
) -> None:
    tokens = tokenize(PHONEMES, real_kmodel.vocab, "test")
    voice = voice_row(canonical.load_voices(real_weights), "jf_alpha", PHONEMES)
    plain = cpu_session(monolith).run(
        None, {"tokens": tokens, "style": voice, "speed": np.ones(1, np.float32)}
    )[0].reshape(-1)  # fmt: skip
    own = Monolith(monolith).run(tokens, voice, 1.0)
    np.testing.assert_array_equal(own.audio, plain)
    alone = predict_durations(monolith, {"it": (tokens, voice, 1.0)})["it"]
    np.testing.assert_array_equal(alone.reshape(-1), own.durations)
    repeated = Monolith(monolith, ["durations"]).run(tokens, voice, 1.0, durations=own.durations)
    np.testing.assert_array_equal(repeated.audio, plain)

    frontend = Frontend(cpu / "kokoro_duration.onnx", cpu / "kokoro_prosody.onnx")
    prepared = frontend.prepare(tokens, voice, 1.0, corpus_noise(0))
    noise = prepared.features["noise"]
    truth, _ = synthesize(real_kmodel, tokens, voice, 1.0, noise, prepared.frames)
    given = Monolith(monolith, ["durations", "source"]).run(tokens, voice, 1.0, prepared.durations, noise)
    assert len(given.exact_audio()) == len(truth)
    snr = {
        "published": measured(truth, own.audio)["snr_db"] if len(own.audio) == len(truth) else 0.0,
        "given": measured(truth, given.audio)["snr_db"],
        "exact": measured(truth, given.exact_audio())["snr_db"],
    }
    # The source decides over the waveform, and the inverse STFT is a further error of its own.
    assert snr["published"] < 5 < snr["given"] < snr["exact"]
    silent = noise.copy()
    silent[:, :, : noise.shape[2] - NOISE_TAIL] = 0
    other = Monolith(monolith, ["durations", "source"]).run(tokens, voice, 1.0, prepared.durations, silent)
    assert measured(truth, other.exact_audio())["snr_db"] < 5


@pytest.mark.weights
def test_the_smallest_variant_is_smaller_and_nearer_than_the_monolith(
    monolith: Path, real_weights: Path, real_kmodel: KModel, cpu: Path, tmp_path: Path
) -> None:
    """On weights without dither, which are the monolith's own to the bit: what it loses here is its arithmetic's."""
    floats = SplitModel(cpu, tmp_path / "decoder", [FRAMES])
    write_onnx(places.decoder(floats.decoders, FRAMES), export_decoder(real_kmodel, Bucket(FRAMES)))
    out = tmp_path / "q8f16"
    written = write_variant(VARIANTS["q8f16"], floats, floats.decoders, {}, {}, out)
    assert written.bytes([FRAMES]) < PUBLISHED_BYTES < monolith.stat().st_size

    tokens = tokenize(PHONEMES, real_kmodel.vocab, "test")
    voice = voice_row(canonical.load_voices(real_weights), "jf_alpha", PHONEMES)
    frontend = Frontend(cpu / "kokoro_duration.onnx", cpu / "kokoro_prosody.onnx")
    prepared = frontend.prepare(tokens, voice, 1.0, corpus_noise(0))
    noise = prepared.features["noise"]
    truth, _ = synthesize(real_kmodel, tokens, voice, 1.0, noise, prepared.frames)
    narrow = Frontend(written.duration, written.prosody)
    features = narrow.prepare(tokens, voice, 1.0, corpus_noise(0), prepared.durations).features
    inputs = pad_to_bucket({**features, "noise": noise}, Bucket(FRAMES))
    ours = trim(cpu_session(places.decoder(out, FRAMES)).run(None, inputs)[0], prepared.frames)
    theirs = Monolith(monolith, ["durations", "source"]).run(tokens, voice, 1.0, prepared.durations, noise)
    figures = {"ours": measured(truth, ours), "theirs": measured(truth, theirs.exact_audio())}
    assert figures["ours"]["logmel_mae"] < 0.5 * figures["theirs"]["logmel_mae"]
    assert figures["ours"]["snr_db"] > figures["theirs"]["snr_db"] + 6


@pytest.mark.weights
def test_verify_writes_two_recordings_and_prints_their_distance(
    monolith: Path, real_weights: Path, cpu: Path, tmp_path: Path
) -> None:
    arguments = ["verify", monolith, "--text", "Hello, world!", "--voice", "jf_alpha", "--weights", real_weights]
    arguments += ["--cpu", cpu, "--out", tmp_path]
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    rows = dict(line.rsplit(maxsplit=1) for line in result.output.splitlines() if "logmel" in line or "snr" in line)
    figures = {name.strip(): float(value) for name, value in rows.items()}
    assert PHONEMES in result.output
    recordings = [soundfile.read(tmp_path / f"{name}_output.wav")[0] for name in ("torch", "onnx")]
    assert all(0.05 < np.abs(audio).max() < 1 for audio in recordings)
    common = min(len(audio) for audio in recordings)
    reference, audio = (audio[:common].astype(np.float32) for audio in recordings)
    assert figures["logmel_mae"] == pytest.approx(measured(reference, audio)["logmel_mae"], abs=0.05)


@pytest.mark.weights
def test_verify_names_the_voices_there_are(monolith: Path, real_weights: Path, cpu: Path) -> None:
    arguments = ["verify", monolith, "--text", "Hello", "--voice", "jf_alfa", "--weights", real_weights, "--cpu", cpu]
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert isinstance(result.exception, KokoroNpuError)
    assert "did you mean jf_alpha?" in str(result.exception)
