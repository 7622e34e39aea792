"""The runtimes themselves on narrow models; each test needs its extra, and is skipped where that is not installed."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kokoro_npu.audio import metrics
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.host.steps import pad_to_bucket
from kokoro_npu.model.decoder import Head, StaticDecoder
from kokoro_npu.runtimes import coreml, executorch, litert
from kokoro_npu.runtimes.measure import Loader
from tests.narrow_model import as_tensors, narrow_kmodel, random_features

pytestmark = pytest.mark.runtimes

BUCKET = Bucket(10)
FRAMES = 7


class Unsupported(nn.Module):
    """An op that no mobile converter has a form of."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(x @ x.T)


@pytest.fixture(scope="module")
def decoder() -> StaticDecoder:
    """A narrow decoder with one kind of residual block, to convert fast."""
    return StaticDecoder(narrow_kmodel(0, kernels=(3,)).decoder, BUCKET)


@pytest.fixture(scope="module")
def inputs() -> dict[str, Array]:
    return pad_to_bucket(random_features(FRAMES, 1), BUCKET)


@pytest.fixture(scope="module")
def expected(decoder: StaticDecoder, inputs: dict[str, Array]) -> Array:
    with torch.inference_mode():
        return decoder(**as_tensors(inputs)).numpy()


def example(inputs: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.zeros(value.shape) for name, value in inputs.items()}


def run(loader: Loader, path: Path, inputs: dict[str, Array]) -> Array:
    return loader.load(path, 1)(inputs)


def test_litert_is_exact_and_its_int8_form_is_close(
    decoder: StaticDecoder, inputs: dict[str, Array], expected: Array, tmp_path: Path
) -> None:
    pytest.importorskip("litert_torch", reason="needs the extra litert")
    path, small = tmp_path / "decoder.tflite", tmp_path / "small.tflite"
    litert.convert(decoder, example(inputs), path)
    assert metrics.snr_db(expected, run(litert.LOADER, path, inputs)) >= 80
    head = [litert.scope(decoder, Head)]
    litert.quantize_weights(path, small, head)
    worse = tmp_path / "worse.tflite"
    litert.quantize_weights(path, worse)
    snr, without_head = (metrics.snr_db(expected, run(litert.LOADER, file, inputs)) for file in (small, worse))
    assert snr >= 25
    assert snr > without_head  # the head was found by its name, and kept
    half = tmp_path / "half.tflite"
    litert.quantize_weights(path, half, half=["kokoro_npu.model.decoder.StaticDecoder"])
    assert metrics.snr_db(expected, run(litert.LOADER, half, inputs)) > snr + 10
    assert small.stat().st_size < half.stat().st_size < 0.7 * path.stat().st_size
    before, after = litert.inspect(path), litert.inspect(small)
    assert after["ops"] > before["ops"]  # those that make floats of the weights
    assert 0 < before["ops_accelerated"] <= before["ops"]
    assert "RESIZE_BILINEAR" not in before["op_kinds"]
    integer = tmp_path / "integer.tflite"
    litert.quantize_convolutions(path, integer, [inputs], head)
    found = metrics.snr_db(expected, run(litert.LOADER, integer, inputs))
    assert 25 <= found < snr + 3  # the weights' 8 bits, and a little for the activations
    assert "QUANTIZE" in litert.inspect(integer)["op_kinds"]


def test_executorch_is_exact_on_xnnpack(
    decoder: StaticDecoder, inputs: dict[str, Array], expected: Array, tmp_path: Path
) -> None:
    pytest.importorskip("executorch.exir", reason="needs the extra executorch")
    path = tmp_path / "decoder.pte"
    report = executorch.convert(decoder, example(inputs), path)
    assert metrics.snr_db(expected, run(executorch.LOADER, path, inputs)) >= 80
    assert report["partitions"] > 0
    assert 0 < report["ops_accelerated"] < report["ops"]


@pytest.mark.parametrize(("precision", "floor"), [("fp32", 80), ("fp16", 30)])
def test_coremls_ops_compute_the_decoder(
    decoder: StaticDecoder, inputs: dict[str, Array], expected: Array, tmp_path: Path, precision: str, floor: float
) -> None:
    pytest.importorskip("coremltools", reason="needs the extra coreml")
    path, again = tmp_path / "decoder.mlpackage", tmp_path / "again.mlpackage"
    for target in (path, again):
        coreml.convert(decoder, example(inputs), target, precision)
    program = coreml.Program(path)
    snr = metrics.snr_db(expected, program(inputs))
    assert snr >= floor
    assert (snr < 80) == (precision == "fp16")  # the rounding is really done
    made = program.inspect()
    assert made["longest_dim"] == BUCKET.samples + 40
    files = [{file.relative_to(p): sha256(file) for file in p.rglob("*") if file.is_file()} for p in (path, again)]
    assert files[0] == files[1]


def test_half_precision_that_overflows_is_seen(tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs the extra coreml")

    class Loud(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 300 * 300).mean(dim=1, keepdim=True)

    path = tmp_path / "loud.mlpackage"
    coreml.convert(Loud(), {"x": torch.zeros(1, 16)}, path, "fp16")
    program = coreml.Program(path)
    assert np.isinf(program({"x": np.ones((1, 16), np.float32)})).all()
    assert program.overflows > 0


@pytest.mark.parametrize(("rows", "width"), [(1, 1801 * 8), (4, 2500), (1, 40), (2, 8)])
def test_no_sum_behind_a_long_mean_is_long(rows: int, width: int, tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs the extra coreml")

    class OverTime(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(dim=(2, 3) if rows > 1 else 3, keepdim=True)

    path = tmp_path / "mean.mlpackage"
    x = np.random.default_rng(0).normal(8, 2, (1, 3, rows, width)).astype(np.float32)
    coreml.convert(OverTime(), {"x": torch.zeros(x.shape)}, path, "fp16")
    program = coreml.Program(path)
    np.testing.assert_allclose(program({"x": x}), x - x.mean(axis=(2, 3), keepdims=True), atol=0.02)
    pieces = {14_408: 8, 10_000: 100, 40: 1, 16: 1}[rows * width]
    whole = np.abs(x).sum(axis=(2, 3)).max()
    assert 0.99 * whole / pieces <= program.sum_max < 1.2 * whole / pieces + 1
    assert program.inspect()["longest_dim"] <= max(width, rows)


def test_a_mean_of_everything_converts(tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs the extra coreml")

    class Whole(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.mean()

    path = tmp_path / "mean.mlpackage"
    coreml.convert(Whole(), {"x": torch.zeros(2, 300)}, path, "fp32")
    x = np.arange(600, dtype=np.float32).reshape(2, 300)
    np.testing.assert_allclose(coreml.Program(path)({"x": x}), x + x.mean())


@pytest.mark.parametrize("runtime", ["litert", "executorch", "coreml"])
def test_an_op_that_a_runtime_does_not_take_is_named(runtime: str, tmp_path: Path) -> None:
    inputs = {"x": torch.zeros(4, 4)}
    if runtime == "litert":
        pytest.importorskip("litert_torch", reason="needs the extra litert")
        with pytest.raises(KokoroNpuError, match="eigh"):
            litert.convert(Unsupported(), inputs, tmp_path / "x.tflite")
    elif runtime == "executorch":
        pytest.importorskip("executorch.exir", reason="needs the extra executorch")
        with pytest.raises(KokoroNpuError, match="eigh"):
            executorch.convert(Unsupported(), inputs, tmp_path / "x.pte")
    else:
        pytest.importorskip("coremltools", reason="needs the extra coreml")
        with pytest.raises(KokoroNpuError, match="eigvalsh"):
            coreml.convert(Unsupported(), inputs, tmp_path / "x.mlpackage", "fp32")
    assert list(tmp_path.iterdir()) == []
