"""The SDK bundle: what is in it, that it speaks, and that it is refused when a byte is wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from kokoro_npu.audio import metrics
from kokoro_npu.build.labels import FP32
from kokoro_npu.cli.main import cli
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.backends import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, write_json, write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.sdk.bundle import open_bundle
from kokoro_npu.sdk.manifest import DATA, DIGEST, MANIFEST, SCHEMA, digest_line
from kokoro_npu.sdk.package import Build, write_bundle
from kokoro_npu.sdk.vectors import cases, vectors_text
from kokoro_npu.speech.models import models_of_build
from kokoro_npu.speech.synthesizer import Synthesizer
from tests.narrow_build import BUCKETS, VOICE

ROOT = Path(__file__).resolve().parents[1]
COMPILED, NOT_COMPILED = min(BUCKETS), max(BUCKETS)
TARGET = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8)
LICENCES = [ROOT / "LICENSE", ROOT / "NOTICE"]


def add_context_binary(directory: Path, frames: int) -> None:
    """What qai-compile leaves behind: a model of one EPContext node, and the binary that it names."""
    name = f"kokoro_decoder_{frames}_ctx"
    shapes = Bucket(frames).input_shapes
    inputs = [onnx.helper.make_tensor_value_info(key, 1, shape) for key, shape in shapes.items()]
    output = onnx.helper.make_tensor_value_info("audio", 1, [1, 600 * frames])
    node = onnx.helper.make_node("EPContext", list(shapes), ["audio"], domain="com.microsoft")
    node.attribute.append(onnx.helper.make_attribute("ep_cache_context", f"{name}_qnn.bin"))
    directory.mkdir(parents=True)
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", inputs, [output])), directory / f"{name}.onnx")
    (directory / f"{name}_qnn.bin").write_bytes(bytes(range(256)) * 8)


@pytest.fixture(scope="module")
def build(narrow_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    root = tmp_path_factory.mktemp("sdk_build")
    shutil.copytree(narrow_build, root / "artifacts")
    add_context_binary(root / "artifacts/compiled" / str(COMPILED), COMPILED)
    for frames in BUCKETS:
        compiled = frames == COMPILED
        report = {"precision": "w8a16", "compiled": compiled, "reason": "" if compiled else "too wide"}
        write_json(
            root / f"reports/compile/{frames}.json", report | {"qairt": "2.51" if compiled else "", "seconds": 1.5}
        )
        figures = {"torch_snr_db_min": 110.0, "fp32_snr_db_min": 105.5, "quantized_snr_db_min": 25.0, "utterances": 4}
        figures |= {"quantized_magspec_corr_min": 0.999, "quantized_logmel_mae_max": 0.2, "duration_mismatches": 0}
        made_by = {"precision": "w8a16", "backend": "onnxruntime-cpu", "transformers": "5"}
        write_json(root / f"reports/parity/{frames}.json", figures | made_by)
    return Build(root / "artifacts", root / "reports", sorted(BUCKETS), "w8a16", TARGET)


@pytest.fixture(scope="module")
def shared(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdk") / "sdk"
    write_bundle(build, ["fp32"], LICENCES, out)
    return out


@pytest.fixture
def bundle(shared: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(shared, tmp_path / "sdk"))


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_manifest_says_everything(shared: Path) -> None:
    manifest = open_bundle(shared).manifest
    assert manifest["audio"]["samples_per_frame"] == 600
    assert manifest["audio"]["sample_rate"] == 24_000
    assert [(b["frames"], b["seconds"], b["samples"]) for b in manifest["buckets"]] == [
        (16, 0.4, 9600),
        (40, 1.0, 24000),
    ]
    small, large = manifest["buckets"]
    assert small["context_binary"] == {
        "model": "htp/kokoro_decoder_16_ctx.onnx",
        "binary": "htp/kokoro_decoder_16_ctx_qnn.bin",
        "graph": None,
    }
    assert (large["context_binary"], large["not_compiled"]) == (None, "too wide")
    for bucket in manifest["buckets"]:
        shapes = {tensor["name"]: tuple(tensor["shape"]) for tensor in bucket["inputs"]}
        assert shapes == Bucket(bucket["frames"]).input_shapes
        assert bucket["outputs"] == [{"name": "audio", "dtype": "float32", "shape": [1, 600 * bucket["frames"]]}]
    tokens = manifest["models"]["duration"]["inputs"][0]
    assert tokens == {"name": "tokens", "dtype": "int64", "shape": [1, "token_count"]}
    assert manifest["model"]["weights"]["source"] == "narrow"
    assert manifest["target"] | {"qairt": "2.51", "soc_model": 57, "htp_arch": 75} == manifest["target"]
    assert manifest["quality"][0]["quantized_snr_db_min"] == 25.0
    assert set(manifest["files"]) == set(contents(shared)) - {MANIFEST, DIGEST}


def test_the_model_card_says_what_the_manifest_does(shared: Path) -> None:
    card = (shared / "README.md").read_text(encoding="utf-8")
    assert "24000 Hz mono" in card
    assert "Weights: source `narrow`. Decoders: w8a16." in card
    assert "Snapdragon 8 Gen 3 (sm8650, SoC model 57, Hexagon V75), QAIRT 2.51." in " ".join(card.split())
    assert "| 16 | 0.4 | htp/kokoro_decoder_16_ctx_qnn.bin |\n| 40 | 1 | none: too wide |\n\nOne frame" in card
    assert "`jf_alpha`, `jm_kumo`. A file holds 510 rows of 256 float32" in card
    assert "| 40 | 4 | 105.5 dB | 25.0 dB | onnxruntime-cpu |\n\n## Use" in card


def test_the_bundle_speaks_as_its_build_does(shared: Path, build: Build) -> None:
    (ours,) = Synthesizer(open_bundle(shared).models(FP32), 1).speak(["abc def."], VOICE, seed=3)
    (theirs,) = Synthesizer(models_of_build(build.artifacts, FP32), 1).speak(["abc def."], VOICE, seed=3)
    assert np.array_equal(ours.audio, theirs.audio)


def test_the_same_build_gives_the_same_bytes(shared: Path, build: Build, tmp_path: Path) -> None:
    out = tmp_path / "sdk"
    (out / "htp").mkdir(parents=True)
    (out / "htp/half.bin").write_bytes(b"of a killed run")
    for _ in range(2):  # the second in the place of the first
        write_bundle(build, ["fp32"], LICENCES, out)
        assert contents(out) == contents(shared)


def test_one_flipped_byte_anywhere_is_refused(bundle: Path) -> None:
    files = sorted(contents(bundle))
    assert len(files) > 15
    for name in files:
        path = bundle / name
        original = path.read_bytes()
        for at in {0, len(original) // 2, len(original) - 1}:
            spoilt = bytearray(original)
            spoilt[at] ^= 1
            path.write_bytes(spoilt)
            with pytest.raises(KokoroNpuError, match=r"is damaged|is not the file that manifest.sha256 vouches for"):
                open_bundle(bundle)
        path.write_bytes(original)
    open_bundle(bundle)


def test_missing_extra_and_short_files_are_refused(bundle: Path) -> None:
    voice = bundle / f"voices/{VOICE}.bin"
    original = voice.read_bytes()
    voice.write_bytes(original[:-4])
    with pytest.raises(KokoroNpuError, match=r"jf_alpha\.bin is damaged"):
        open_bundle(bundle)
    voice.unlink()
    with pytest.raises(KokoroNpuError, match=r"jf_alpha\.bin is missing from the bundle"):
        open_bundle(bundle)
    voice.write_bytes(original)
    (bundle / "htp/more.bin").write_bytes(b"")
    with pytest.raises(KokoroNpuError, match=r"more\.bin is not listed"):
        open_bundle(bundle)


def _set(*keys: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        inner: Any = manifest
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("format_version", to=1), "has format version 1, this loader reads 2"),
        (_set("audio", "samples_per_frame", to=256), r"at audio.samples_per_frame: 600 was expected"),
        (_set("surplus", to=1), "at the top level: .*'surplus' was unexpected"),
        (_set("buckets", 0, "frames", to="16"), "at buckets.0.frames: '16' is not of type 'integer'"),
        (_set("buckets", to=[]), "at buckets"),
        (_set("buckets", 1, "seconds", to=3.0), "seconds of the bucket of 40 frames: 3.0, not 1.0"),
        (
            _set("buckets", 0, "inputs", 0, "shape", 2, to=17),
            r"inputs of the bucket of 16 frames: .*\(1, 512, 17\)",
        ),
        (_set("phonemes", to="../phonemes.json"), "at phonemes"),
        (_set("models", "prosody", "path", to="/etc/passwd"), "at models.prosody.path"),
        (_set("voices", "files", "x", to="voices/../../x.bin"), "at voices.files.x"),
        (_set("voices", "files", "x", to="voices/x.bin"), "names voices/x.bin, which is not among its files"),
        (_set("files", "LICENSE", "sha256", to="0"), "at files.LICENSE.sha256"),
        (_set("target", "soc_model", to=0), "at target.soc_model"),
    ],
)
def test_a_manifest_that_breaks_its_contract_is_refused(
    bundle: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """Even if its digest is right."""
    manifest = read_json(bundle / MANIFEST)
    change(manifest)
    write_json(bundle / MANIFEST, manifest)
    (bundle / DIGEST).write_bytes(digest_line(bundle / MANIFEST))
    with pytest.raises(KokoroNpuError, match=message):
        open_bundle(bundle)


def test_a_manifest_without_any_of_its_keys_is_refused(bundle: Path) -> None:
    whole = read_json(bundle / MANIFEST)
    for key in set(whole) - {"encodings"}:
        write_json(bundle / MANIFEST, {name: value for name, value in whole.items() if name != key})
        (bundle / DIGEST).write_bytes(digest_line(bundle / MANIFEST))
        with pytest.raises(KokoroNpuError, match="does not follow its schema at the top level"):
            open_bundle(bundle)


def test_the_published_schema_is_one_and_travels_along(shared: Path) -> None:
    schema = read_json(DATA / SCHEMA)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (shared / SCHEMA).read_bytes() == (DATA / SCHEMA).read_bytes()
    jsonschema.validate(read_json(shared / MANIFEST), schema)


def test_no_bundle_and_no_such_precision_are_one_line(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"is no SDK bundle: it has no manifest\.json; the stage `package` makes"):
        open_bundle(tmp_path)
    with pytest.raises(KokoroNpuError, match="holds no quantized decoder but fp32; choose --precision fp32"):
        open_bundle(shared).models("quantized")


def test_what_is_not_built_or_stale_is_one_line(build: Build, tmp_path: Path) -> None:
    copy = Build(Path(shutil.copytree(build.artifacts, tmp_path / "a")), build.reports, [16, 40], "w8a16", TARGET)
    out = tmp_path / "sdk"
    with pytest.raises(KokoroNpuError, match=r"quantized/kokoro_decoder\.weights\.json is not there: build it first"):
        write_bundle(copy, ["quantized"], LICENCES, out)
    with pytest.raises(KokoroNpuError, match="holds no usable decoder of 17 frames"):
        write_bundle(Build(copy.artifacts, copy.reports, [17], "w8a16", TARGET), ["fp32"], LICENCES, out)
    with pytest.raises(KokoroNpuError, match=r"compile/16.json is of precision w8a16, the build's is fp16"):
        write_bundle(Build(copy.artifacts, copy.reports, [16], "fp16", TARGET), ["fp32"], LICENCES, out)
    for path in (copy.artifacts / "compiled/16").iterdir():
        path.unlink()
    assert not out.exists()
    with pytest.raises(KokoroNpuError, match="compiled/16 holds no binary, though its report says compiled"):
        write_bundle(copy, ["fp32"], LICENCES, out)
    with pytest.raises(KokoroNpuError, match="is no SDK bundle"):
        open_bundle(out)


def test_a_binary_alone_as_ai_hub_gives_it(build: Build, tmp_path: Path) -> None:
    artifacts = Path(shutil.copytree(build.artifacts, tmp_path / "a"))
    (artifacts / "compiled/16/kokoro_decoder_16_ctx.onnx").unlink()
    write_bundle(Build(artifacts, build.reports, [16], "w8a16", TARGET), ["fp32"], LICENCES, tmp_path / "sdk")
    (bucket,) = open_bundle(tmp_path / "sdk").manifest["buckets"]
    assert bucket["context_binary"] == {"model": None, "binary": "htp/kokoro_decoder_16_ctx_qnn.bin", "graph": None}


def test_one_binary_for_all_buckets(build: Build, tmp_path: Path) -> None:
    """It is taken before the buckets' own ones; directories of the buckets name it and their graph in it."""
    root = tmp_path / "build"
    shutil.copytree(build.artifacts.parent, root)
    shared = root / "artifacts/shared"
    shared.mkdir()
    (shared / "kokoro_decoder_qnn.bin").write_bytes(bytes(range(256)) * 8)
    for frames in BUCKETS:
        context = f"kokoro_decoder_{frames}_ctx.onnx"
        (shared / context).write_bytes(b"the shared binary's name")
        names = {"binary": "kokoro_decoder_qnn.bin", "context": context, "graph": f"g{frames}"}
        write_json(shared / str(frames) / "bucket.json", names)
    both = Build(root / "artifacts", root / "reports", build.buckets, "w8a16", TARGET)
    write_bundle(both, ["fp32"], LICENCES, tmp_path / "sdk")
    small, large = (bucket["context_binary"] for bucket in open_bundle(tmp_path / "sdk").manifest["buckets"])
    assert small["binary"] == large["binary"] == "htp/kokoro_decoder_qnn.bin"
    assert (small["model"], small["graph"]) == ("htp/kokoro_decoder_16_ctx.onnx", "g16")
    assert (large["model"], large["graph"]) == ("htp/kokoro_decoder_40_ctx.onnx", "g40")
    held = sorted(path.name for path in (tmp_path / "sdk/htp").iterdir())
    assert held == ["kokoro_decoder_16_ctx.onnx", "kokoro_decoder_40_ctx.onnx", "kokoro_decoder_qnn.bin"]
    # A bucket that did not get into it keeps its own.
    shutil.rmtree(shared / str(COMPILED))
    write_bundle(both, ["fp32"], LICENCES, tmp_path / "sdk")
    small, large = (bucket["context_binary"] for bucket in open_bundle(tmp_path / "sdk").manifest["buckets"])
    assert (small["binary"], small["graph"]) == (f"htp/kokoro_decoder_{COMPILED}_ctx_qnn.bin", None)
    assert large["binary"] == "htp/kokoro_decoder_qnn.bin"


@pytest.mark.qnn
def test_the_bundles_binary_speaks_in_the_emulator(build: Build, tmp_path: Path) -> None:
    """The NPU's arithmetic in half precision, from phonemes to audio; the CPU beside it."""
    if reason := toolchain.missing_reason():
        pytest.skip(reason)
    artifacts = Path(shutil.copytree(build.artifacts, tmp_path / "a"))
    decoder = artifacts / "whole/kokoro_decoder_16.onnx"
    write_onnx(decoder, onnx.load(artifacts / "decoder/kokoro_decoder_16.onnx"))
    report = compile_decoder(decoder, 16, Spec("fp16", TARGET, CompileSettings()), artifacts / "compiled/16")
    assert report["compiled"], report["reason"]
    write_bundle(Build(artifacts, build.reports, [16], "w8a16", TARGET), ["fp32"], LICENCES, tmp_path / "sdk")
    bundle = open_bundle(tmp_path / "sdk")
    on_npu, on_cpu = (next(Synthesizer(bundle.models(FP32, npu), 1).speak(["a"], VOICE, 2.0)) for npu in (True, False))
    assert 30 < metrics.snr_db(on_cpu.audio, on_npu.audio) < 85


def test_the_commands(shared: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["check-bundle", str(shared)])
    assert done.exit_code == 0
    assert "whole; " in done.output
    assert "buckets 16 (0.4 s), 40 (1 s)" in done.output
    out = tmp_path / "out.wav"
    arguments = ["say", "--bundle", str(shared), "--precision", "fp32", "--phonemes", "abc.", "-o", str(out)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert out.stat().st_size > 1000


def test_the_vectors_cover_every_step_and_are_the_same_each_time(shared: Path) -> None:
    text = (shared / "reference/host_vectors.txt").read_text(encoding="utf-8")
    assert text == vectors_text()
    blocks = [block.strip().splitlines() for block in text.split("\n\n")[1:]]
    assert [block[0] for block in blocks] == [step for step, _ in cases()]
    program = (shared / "reference/HostCheck.kt").read_text(encoding="utf-8")
    assert {block[0] for block in blocks} == {
        line.split('"')[1] for line in program.splitlines() if '" -> diff' in line
    }
    for block, (_, values) in zip(blocks, cases(), strict=True):
        for line, (name, value) in zip(block[1:], values.items(), strict=True):
            words = line.split()
            assert words[0] == name
            expected = np.asarray(value).reshape(-1)
            if expected.dtype == np.float32:
                bits = np.array([int(word, 16) for word in words[1:]], dtype=np.uint32)
                assert np.array_equal(bits, expected.view(np.uint32))
            else:
                assert [int(word) for word in words[1:]] == expected.tolist()
