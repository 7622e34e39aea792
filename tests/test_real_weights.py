"""The project's figures on the real weights: exactness, quantization, bytes, placement."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from kokoro import KModel
from torch import Tensor, nn

from kokoro_npu.audio import metrics
from kokoro_npu.audit.ops import audit_graph, op_table
from kokoro_npu.audit.placement import audit_placement
from kokoro_npu.build.labels import FP32, QUANTIZED
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.backends import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.corpus.recording import record
from kokoro_npu.corpus.reference_set import CALIBRATION, EVALUATION, ReferenceUtterance, load_reference_set
from kokoro_npu.corpus.utterances import load_corpus
from kokoro_npu.evaluate import parity
from kokoro_npu.evaluate.gates import check_gates
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.host.source_noise import corpus_noise
from kokoro_npu.host.steps import crop, pad_to_bucket, trim
from kokoro_npu.host.tokens import tokenize, voice_row
from kokoro_npu.model import reference
from kokoro_npu.model.decoder import StaticDecoder
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.calibrate import calibrate_decoder
from kokoro_npu.quantize.recipe import Recipe
from kokoro_npu.weights import canonical
from kokoro_npu.weights.kmodel import load_kmodel

pytestmark = pytest.mark.weights

ROOT = Path(__file__).resolve().parents[1]
SMALL, LARGE = 48, 120
TORCH_DB, FP32_DB, W8A16_DB, FP16_DB = 100.0, 85.0, 20.0, 40.0
SHORT = frozenset({"cal-02", "cal-08", "cal-09", "cal-10", "eval-01", "eval-02"})
"""Utterances of the corpus that fit the larger bucket: enough to calibrate on, and two to judge."""


def _recipe(precision: str) -> Recipe:
    """The committed recipe, calibrated on the larger bucket of this test: the shipped ones take minutes."""
    options = yaml.safe_load((ROOT / f"conf/quantize/{precision}.yaml").read_text(encoding="utf-8"))
    options["calibration"] |= {"frames": [LARGE]}
    return Recipe.from_options(options)


@dataclass(frozen=True)
class Built:
    """What the stages up to quantize make, for two buckets."""

    frontend: Frontend
    features: Path
    decoder: Path
    quantized: Path
    encodings: Path


def export_and_quantize(weights_dir: Path, encodings: Path, out: Path) -> None:
    """Export and quantize the smaller bucket, each with a pack of its own."""
    model = export_decoder(load_kmodel(weights_dir), Bucket(SMALL))
    name = f"kokoro_decoder_{SMALL}.onnx"
    Pack.write(model, out / "decoder/kokoro_decoder.weights").save(model, out / "decoder" / name)
    quantized = quantize_decoder(onnx.load(out / "decoder" / name), _recipe("w8a16"), encodings)
    Pack.write(quantized, out / "quantized/kokoro_decoder.weights").save(quantized, out / "quantized" / name)


@pytest.fixture(scope="module")
def built(real_weights: Path, real_kmodel: KModel, tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("built")
    write_onnx(out / "duration.onnx", export_duration(real_kmodel))
    write_onnx(out / "prosody.onnx", export_prosody(real_kmodel))
    corpus = [utterance for utterance in load_corpus(ROOT / "data/corpus.yaml") if utterance.id in SHORT]
    assert len(corpus) == len(SHORT)
    frontend = Frontend(out / "duration.onnx", out / "prosody.onnx")
    record(corpus, real_kmodel, canonical.load_voices(real_weights), frontend, out / "features", seed=0)
    made = Built(frontend, out / "features", out / "decoder", out / "quantized", out / "encodings.json")

    recipe, name = _recipe("w8a16"), f"kokoro_decoder_{LARGE}.onnx"
    model = export_decoder(real_kmodel, Bucket(LARGE))
    recorded = list(load_reference_set(made.features, CALIBRATION))
    calibrate_decoder(lambda _: model, recorded, recipe, made.encodings)
    export_and_quantize(real_weights, made.encodings, out)
    Pack.open(made.decoder / "kokoro_decoder.weights").save(model, made.decoder / name)
    quantized = quantize_decoder(onnx.load(made.decoder / name), recipe, made.encodings)
    Pack.open(made.quantized / "kokoro_decoder.weights").save(quantized, made.quantized / name)
    return made


@pytest.fixture(scope="module")
def spoken(built: Built) -> list[ReferenceUtterance]:
    return list(load_reference_set(built.features, EVALUATION))


def test_durations_are_equal_token_by_token(built: Built, real_weights: Path, real_kmodel: KModel) -> None:
    """The ONNX model's against PyTorch's, over the whole corpus."""

    class Mute(nn.Module):
        """In place of the decoder, which would take minutes and has no say in the durations."""

        def forward(self, aligned: Tensor, *others: Tensor) -> Tensor:
            del others
            return aligned

    voices = canonical.load_voices(real_weights)
    different = {}
    decoder, real_kmodel.decoder = real_kmodel.decoder, Mute()
    try:
        for utterance in load_corpus(ROOT / "data/corpus.yaml"):
            tokens = tokenize(utterance.phonemes, real_kmodel.vocab, utterance.id)
            voice = voice_row(voices, utterance.voice, utterance.phonemes)
            ours = built.frontend.prepare(tokens, voice, utterance.speed, corpus_noise(0)).durations[0]
            _, theirs = real_kmodel.forward_with_tokens(
                torch.from_numpy(tokens), torch.from_numpy(voice), utterance.speed
            )
            if ours.tolist() != theirs.tolist():
                different[utterance.id] = (ours.tolist(), theirs.tolist())
    finally:
        real_kmodel.decoder = decoder
    assert different == {}


def _cuts(
    spoken: list[ReferenceUtterance], size: int, model: KModel
) -> Iterator[tuple[str, dict[str, np.ndarray], np.ndarray]]:
    """Real features that fill 30 to 100 % of a bucket, from the middle of utterances, and upstream's audio of them."""
    shortest, longest = spoken[0], spoken[-1]
    for item, fill in ((shortest, 0.3), (longest, 0.55), (longest, 1.0)):
        frames = min(round(fill * size), item.frames)
        features = crop(item.features, frames, (item.frames - frames) // 2)
        yield f"{item.id}: {frames} of {size}", features, reference.decode(model.decoder, features)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_static_decoder_is_exact_in_torch_and_on_onnx_runtime(
    built: Built, spoken: list[ReferenceUtterance], real_kmodel: KModel, size: int
) -> None:
    bucket = Bucket(size)
    on_torch = parity.torch_variant(StaticDecoder(real_kmodel.decoder, bucket))
    on_onnx = parity.onnx_variant(built.decoder / f"kokoro_decoder_{size}.onnx")
    seen = set()
    for name, features, truth in _cuts(spoken, size, real_kmodel):
        inputs = pad_to_bucket(features, bucket)
        frames = features["aligned_features"].shape[2]
        seen.add(frames / size)
        exact = metrics.snr_db(truth, trim(on_torch(inputs), frames))
        assert exact >= TORCH_DB, f"{name}: {exact:.1f} dB in torch"
        exact = metrics.snr_db(truth, trim(on_onnx(inputs), frames))
        assert exact >= FP32_DB, f"{name}: {exact:.1f} dB on ONNX Runtime"
    assert min(seen) < 0.32
    assert max(seen) >= 0.79


def test_the_whole_model_is_exact(built: Built, spoken: list[ReferenceUtterance]) -> None:
    """Against upstream's forward_with_tokens from text to audio, as parity-eval judges it; w8a16 beside it."""
    name = f"kokoro_decoder_{LARGE}.onnx"
    variants = {
        FP32: parity.onnx_variant(built.decoder / name),
        QUANTIZED: parity.onnx_variant(built.quantized / name),
    }
    table = parity.evaluate(spoken, Bucket(LARGE), iter(variants.items()))
    assert len(table) == 4
    gates = {"fp32_snr_db_min": FP32_DB, "quantized_snr_db_min": W8A16_DB, "quantized_magspec_corr_min": 0.95}
    check_gates(table, gates, f"parity-eval@{LARGE}")


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_no_blocking_op_and_no_dynamic_dimension(built: Built, size: int) -> None:
    table = op_table(ROOT / "kokoro_npu/audit/data/op_table.csv")
    for directory in (built.decoder, built.quantized):
        audit = audit_graph(directory / f"kokoro_decoder_{size}.onnx", table)
        assert (audit.blocking, audit.dynamic) == ((), ())


def test_a_small_bucket_rebuilt_is_byte_identical(built: Built, real_weights: Path, tmp_path: Path) -> None:
    """Export and quantize again in another process, whose sets and dicts hash differently."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    code = "import sys; from pathlib import Path; from tests.test_real_weights import export_and_quantize as build\n"
    code += "build(*map(Path, sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(real_weights), str(built.encodings), str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 6
    for file in files:
        assert (tmp_path / file).read_bytes() == (built.decoder.parent / file).read_bytes(), file


# Qualcomm's compiler.


@pytest.fixture(scope="module")
def fp16(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fp16") / f"kokoro_decoder_{SMALL}.onnx"
    model = onnx.load(built.decoder / path.name)
    write_onnx(path, quantize_decoder(model, _recipe("fp16"), built.encodings))
    return path


def test_fp16_is_faithful(fp16: Path, spoken: list[ReferenceUtterance], real_kmodel: KModel) -> None:
    run = parity.onnx_variant(fp16)
    features = crop(spoken[0].features, 40, 1)
    audio = trim(run(pad_to_bucket(features, Bucket(SMALL))), 40)
    assert metrics.snr_db(reference.decode(real_kmodel.decoder, features), audio) >= FP16_DB


@pytest.mark.qnn
@pytest.mark.parametrize("precision", ["w8a16", "fp16"])
def test_the_npu_takes_every_node_and_the_compiler_finishes(
    built: Built, fp16: Path, tmp_path: Path, precision: str
) -> None:
    if reason := toolchain.missing_reason():
        pytest.skip(reason)
    model = {"w8a16": built.quantized / f"kokoro_decoder_{SMALL}.onnx", "fp16": fp16}[precision]
    target = Target(**yaml.safe_load((ROOT / "conf/target/sm8650.yaml").read_text(encoding="utf-8")))
    settings = CompileSettings(**yaml.safe_load((ROOT / "conf/compile/local.yaml").read_text(encoding="utf-8")))
    placement = audit_placement(model, target, settings)
    assert placement.refused == ()
    assert placement.on_npu == len(placement.nodes) > 600
    report = compile_decoder(model, SMALL, Spec(precision, target, settings), tmp_path / "out")
    assert report["compiled"], report["reason"]
    assert (report["soc_model"], report["htp_arch"]) == (57, 75)
    assert report["binary_bytes"] > 40e6
