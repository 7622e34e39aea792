"""What HTP is known to compute wrongly is caught by the audit, by name, in the emulation itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from kokoro import KModel
from safetensors.numpy import save_file
from torch import Tensor, nn

from kokoro_npu.audio import metrics
from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.cli.main import cli
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.local import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.emulation.bisect import compare
from kokoro_npu.emulation.graph import Graph, values
from kokoro_npu.emulation.htp import FP16, Job, emulate
from kokoro_npu.emulation.numerics import Form, audit_numerics, check_gates
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import emulated
from kokoro_npu.evaluate.emulated import EmulatedDecoder
from kokoro_npu.evaluate.parity import evaluate
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.model import reference
from kokoro_npu.model.blocks import TwoPhaseUpsample
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.tracing import export_module
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.calibrate import calibrate
from kokoro_npu.quantize.overrides import Override
from kokoro_npu.quantize.recipe import Calibration, Recipe
from tests.narrow_model import random_features
from tests.small_graphs import INPUTS, decoder_like

pytestmark = pytest.mark.qnn

TARGET = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8)
LEVEL2 = CompileSettings(memory_reserve_gib=0.1)
LEVEL1 = replace(LEVEL2, optimization_level=1)
GATES = {"fp16_snr_db_min": 40.0, "quantized_snr_db_min": 40.0}
W8A16 = Recipe("w8a16", 16, 8, True, Calibration((72,)))
CHANNELS, WIDTH = 1024, 72


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    if reason := toolchain.missing_reason():
        pytest.skip(reason)


def _random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _export(module: nn.Module, **feeds: Array) -> onnx.ModelProto:
    inputs = {name: torch.from_numpy(value) for name, value in feeds.items()}
    return export_module(module.eval(), inputs, ["y"], opset=17)


def _quantize(
    model: onnx.ModelProto, feeds: dict[str, Array], directory: Path, recipe: Recipe = W8A16
) -> onnx.ModelProto:
    encodings = directory / "encodings.json"
    calibrate([(model, [feeds])], recipe.calibration, encodings)
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return quantize_decoder(copied, recipe, encodings)


def _audit(
    form: str, model: onnx.ModelProto, feeds: dict[str, Array], settings: CompileSettings, cache: Path
) -> pd.DataFrame:
    return audit_numerics([Form(form, model, "test")], WIDTH, feeds, TARGET, settings, cache, 1e9, 1)


class Native(nn.Module):
    """The upsampling of the decoder's last block as upstream writes it."""

    def __init__(self, pool: nn.ConvTranspose1d) -> None:
        super().__init__()
        self.pool = nn.ConvTranspose2d(
            CHANNELS, CHANNELS, (1, 3), stride=(1, 2), padding=(0, 1), output_padding=(0, 1), groups=CHANNELS
        )
        self.pool.weight.data = pool.weight.data[:, :, None]
        assert pool.bias is not None
        self.pool.bias = pool.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x)


def test_the_depthwise_transposed_convolution_is_caught_and_its_two_phases_pass(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pool = nn.ConvTranspose1d(CHANNELS, CHANNELS, 3, stride=2, padding=1, output_padding=1, groups=CHANNELS)
    feeds = {"x": _random(1, CHANNELS, 1, WIDTH)}
    with torch.no_grad():
        truth = pool(torch.from_numpy(feeds["x"][:, :, 0])).numpy()
        native, phases = (_export(module, **feeds) for module in (Native(pool), TwoPhaseUpsample(pool)))
    for model in (native, phases):  # both are what PyTorch computes
        assert metrics.snr_db(truth.reshape(-1), values(model, feeds)["y"].reshape(-1)) > 100
    table = _audit(FP16, native, feeds, LEVEL2, tmp_path)
    assert table["snr_db"].min() < 0
    with pytest.raises(KokoroNpuError, match=r"/pool/ConvTranspose \(ConvTranspose, fp16\) to -?\d\.\d dB"):
        check_gates(table, GATES, "here")
    check_gates(_audit(FP16, phases, feeds, LEVEL2, tmp_path), GATES, "here")


class Scaled(nn.Module):
    """A masked norm's mean before the ratio of the lengths became an input: times one over the filled part."""

    def forward(self, x: Tensor, filled: Tensor) -> Tensor:
        return x * torch.reciprocal(filled)


def test_a_reciprocal_above_1_is_caught_and_is_right_in_half_precision(tmp_path: Path) -> None:
    feeds = {"x": _random(1, 16, 1, WIDTH), "filled": np.full((1, 1, 1, 1), 66 / WIDTH, np.float32)}
    model = _export(Scaled(), **feeds)
    quantized = _quantize(model, feeds, tmp_path)
    table = _audit(QUANTIZED, quantized, feeds, LEVEL2, tmp_path)
    # The product alone is right: the fault is the reciprocal's.
    figures = table.set_index("op")["snr_db"]
    assert figures["Reciprocal"] == pytest.approx(21.6, abs=0.5)
    assert figures["Mul"] > 60
    with pytest.raises(KokoroNpuError, match=r"/Reciprocal \(Reciprocal, quantized\) to 21\.\d dB"):
        check_gates(table, GATES, "here")
    check_gates(_audit(FP16, model, feeds, LEVEL2, tmp_path), GATES, "here")
    part = Graph(quantized).part(["filled"], Graph(quantized).quantized("/Reciprocal_output_0"))
    (answer,) = emulate([Job(part, {"filled": feeds["filled"]})], TARGET, LEVEL2)
    (found,) = answer.outputs.values()
    assert found.item() == pytest.approx(0.9999, abs=1e-4)
    assert 1 / feeds["filled"].item() == pytest.approx(1.0909, abs=1e-4)


def test_bisecting_names_the_reciprocal(tmp_path: Path) -> None:
    feeds = {"x": _random(1, 16, 1, WIDTH), "filled": np.full((1, 1, 1, 1), 66 / WIDTH, np.float32)}
    path, inputs = tmp_path / "m.onnx", tmp_path / "feeds.safetensors"
    onnx.save(_quantize(_export(Scaled(), **feeds), feeds, tmp_path), path)
    save_file(feeds, inputs)
    found = list(compare(onnx.load(path), feeds, TARGET, LEVEL2, ""))
    assert [cut.op for cut in found if cut.departs(40)] == ["Reciprocal", "Mul"]
    shown = CliRunner().invoke(cli, ["bisect", str(path), str(inputs)], catch_exceptions=False)
    assert "first op that departs: /Reciprocal (Reciprocal) at level 2: 21.6 dB, below 40" in shown.output
    shown = CliRunner().invoke(cli, ["bisect", str(path), str(inputs), "--floor", "10"], catch_exceptions=False)
    assert "no op departs: all are at or above 10 dB at level 2" in shown.output


@pytest.mark.parametrize(
    ("model", "feeds", "line"),
    [
        ("nosuch.onnx", "good", r"nosuch\.onnx: no such model"),
        ("junk", "good", "junk: not an ONNX model"),
        ("m.onnx", "junk", "junk: not a safetensors file"),
        ("m.onnx", "other", r"other: holds no x of shape \(1, 16, 1, 72\), an input of the model"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, model: str, feeds: str, line: str) -> None:
    onnx.save(_export(InstanceNorm(), x=_random(1, 16, 1, WIDTH)), tmp_path / "m.onnx")
    (tmp_path / "junk").write_bytes(b"junk" * 100)
    save_file({"x": _random(1, 16, 1, WIDTH)}, tmp_path / "good")
    save_file({"x": _random(1, 8, 1, WIDTH)}, tmp_path / "other")
    with pytest.raises(KokoroNpuError, match=line) as caught:
        CliRunner().invoke(cli, ["bisect", str(tmp_path / model), str(tmp_path / feeds)], catch_exceptions=False)
    assert "\n" not in str(caught.value)


class InstanceNorm(nn.Module):
    """The native op."""

    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(x, eps=1e-5)


@pytest.mark.parametrize("settings", [LEVEL1, LEVEL2], ids=["level 1", "level 2"])
def test_the_16_bit_instance_norm_is_judged_at_the_level_that_ships(tmp_path: Path, settings: CompileSettings) -> None:
    """Centred channels pass; a mean of 300 deviations, which the decoder takes out before the norm, is caught."""
    centred = {"x": _random(1, CHANNELS, 1, WIDTH)}
    model = _quantize(_export(InstanceNorm(), **centred), centred, tmp_path)
    check_gates(_audit(QUANTIZED, model, centred, settings, tmp_path), GATES, "here")
    shifted = {"x": centred["x"] + 300}
    model = _quantize(_export(InstanceNorm(), **shifted), shifted, tmp_path)
    table = _audit(QUANTIZED, model, shifted, settings, tmp_path / "shifted")
    with pytest.raises(KokoroNpuError, match=r"/InstanceNormalization \(InstanceNormalization, quantized\) to 2\d\.\d"):
        check_gates(table, GATES, "here")


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 5), (11, 1)])
def test_split_sixteen_bit_weights_are_right_on_htp(kernel: int, dilation: int, tmp_path: Path) -> None:
    """Of the shapes that HTP computes to 34 to 41 dB with a 16-bit weight."""
    torch.manual_seed(0)
    span = dilation * (kernel - 1) // 2
    conv = nn.Conv2d(64, 64, (1, kernel), dilation=(1, dilation), padding=(0, span))
    feeds = {"x": _random(1, 64, 1, 256)}
    model = _export(conv, **feeds)
    split = _quantize(model, feeds, tmp_path, replace(W8A16, overrides=(Override("*Conv", "under test", weights=16),)))
    assert sum(node.op_type == "Conv" for node in split.graph.node) == 2
    (answer,) = emulate([Job(split, feeds)], TARGET, LEVEL2)
    truth, cpu = (values(graph, feeds)["y"].reshape(-1) for graph in (model, split))
    assert metrics.snr_db(cpu, answer.outputs["y"].reshape(-1)) > 70
    assert metrics.snr_db(truth, answer.outputs["y"].reshape(-1)) > 65  # 8-bit weights leave 45


def test_a_crash_of_one_job_leaves_the_others(tmp_path: Path) -> None:
    """A model that does not compile, between two that do."""
    feeds = {"x": _random(1, 16, 1, WIDTH)}
    good = _export(InstanceNorm(), **feeds)
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    answers = emulate([Job(good, feeds), Job(tmp_path / "junk.onnx", feeds), Job(good, feeds)], TARGET, LEVEL2)
    assert [bool(answer.error) for answer in answers] == [False, True, False]
    assert "\n" not in answers[1].error
    np.testing.assert_array_equal(answers[0].outputs["y"], answers[2].outputs["y"])
    assert metrics.snr_db(values(good, feeds)["y"].reshape(-1), answers[0].outputs["y"].reshape(-1)) > 50


def test_a_binary_computes_what_its_model_computes(tmp_path: Path) -> None:
    """The whole decoder's parity runs the binary itself."""
    path = decoder_like(tmp_path / "m.onnx")
    compile_decoder(path, 1, Spec("fp16", TARGET, LEVEL2), tmp_path / "out")
    feeds = {name: _random(*shape) for name, shape in INPUTS.items()}
    jobs = [Job(model, feeds) for model in (tmp_path / "out" / "m_ctx.onnx", path)]
    binary, model = emulate(jobs, TARGET, LEVEL2)
    np.testing.assert_array_equal(binary.outputs["audio"], model.outputs["audio"])


def test_a_whole_narrow_decoder_in_half_precision(narrow: KModel, tmp_path: Path) -> None:
    """Compiled, run and judged as `htp-parity` does it with the real one; padded."""
    bucket, features = Bucket(8), random_features(6, 0)
    path = tmp_path / "float.onnx"
    write_onnx(path, export_decoder(narrow, bucket))
    truth = reference.decode(narrow.decoder, features)
    voice = np.zeros((1, 256), np.float32)
    item = ReferenceUtterance("u6", 6, 1.0, 0, features, truth, np.zeros((1, 3), np.int64), voice)
    decoder = EmulatedDecoder(FP16, path, "fp16")
    audio = emulated.decode_all([decoder], [item], bucket, TARGET, LEVEL2, tmp_path / "cache", 1)
    table = evaluate([item], bucket, emulated.variants(audio, path))
    figures = table.set_index("variant")["snr_db"]
    assert figures[emulated.QUANTIZED_CPU] > 90  # the float graph on ONNX Runtime
    assert 25 < figures[FP16] < 80
