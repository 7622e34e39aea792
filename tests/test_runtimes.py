"""What every runtime's module shares: extras, processes of their own, the static CPU parts, the one table."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from kokoro import KModel
from torch import nn

from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_json
from kokoro_npu.geometry import PROSODY_DIM, STYLE_DIM, VOICE_DIM, Bucket
from kokoro_npu.host.steps import frame_ratio
from kokoro_npu.model.decoder import Head, StaticDecoder
from kokoro_npu.model.duration import DurationModel
from kokoro_npu.runtimes import compare, coreml, executorch, extras, litert, shown, table
from kokoro_npu.runtimes.measure import Engine, kinds, take_turns
from kokoro_npu.runtimes.mil import Interpreter
from kokoro_npu.runtimes.static_parts import StaticDuration, StaticProsody, UnrolledLSTM
from tests.runtime_loaders import BALLAST_BYTES, DOUBLING, FAILING

METADATA = ['ai-edge-litert<2.4,>=2.3; extra == "litert"', 'litert-torch<0.11,>=0.10; extra == "litert"', "numpy"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is installed, as far as kokoro_npu.runtimes.extras can see; a test fills it."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(extras, "version", version)
    monkeypatch.setattr(extras, "requires", lambda _: METADATA)
    return versions


def test_an_extra_in_tested_versions_is_accepted(installed: dict[str, str]) -> None:
    installed |= {"ai-edge-litert": "2.3.0", "litert-torch": "0.10.2"}
    extras.require("litert")


def test_a_missing_package_names_the_extra_and_how_to_install_it(installed: dict[str, str]) -> None:
    installed |= {"ai-edge-litert": "2.3.0"}
    with pytest.raises(KokoroNpuError, match=r"extra litert .*litert-torch is missing.* pip install .*'\.\[litert\]'"):
        extras.require("litert")


def test_another_version_is_named_with_the_wanted_one(installed: dict[str, str]) -> None:
    installed |= {"ai-edge-litert": "2.3.0", "litert-torch": "0.9.4"}
    with pytest.raises(KokoroNpuError, match=r"litert-torch<0\.11,>=0\.10, found 0\.9\.4"):
        extras.require("litert")


def test_an_installation_older_than_the_extra_says_so(installed: dict[str, str]) -> None:
    del installed
    with pytest.raises(KokoroNpuError, match=r"does not know the extra coreml; install"):
        extras.require("coreml")


def test_every_runtime_asks_for_its_extra_before_it_converts(installed: dict[str, str], tmp_path: Path) -> None:
    del installed
    module, inputs = nn.Identity(), {"x": torch.zeros(1)}
    with pytest.raises(KokoroNpuError, match="extra litert"):
        litert.convert(module, inputs, tmp_path / "x.tflite")
    with pytest.raises(KokoroNpuError, match="extra executorch"):
        executorch.convert(module, inputs, tmp_path / "x.pte")
    with pytest.raises(KokoroNpuError, match="extra coreml"):
        coreml.convert(module, inputs, tmp_path / "x.mlpackage", "fp16")
    assert list(tmp_path.iterdir()) == []


def test_litert_refuses_the_convolution_that_it_would_resize(tmp_path: Path) -> None:
    module = nn.Sequential(nn.ReLU(), nn.ConvTranspose1d(4, 4, 3, stride=2, padding=1, groups=4))
    with pytest.raises(KokoroNpuError, match=r"ConvTranspose 1 .*RESIZE_BILINEAR"):
        litert.convert(module, {"x": torch.zeros(1, 4, 8)}, tmp_path / "x.tflite")


def test_an_engine_runs_in_its_own_process_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "bias"
    path.write_text("3", encoding="utf-8")
    with Engine(DOUBLING, path, 1) as engine, Engine(DOUBLING, path, 1) as other:
        x = np.array([1, np.nan, 2], np.float32)
        np.testing.assert_array_equal(engine({"x": x}), np.array([6, np.nan, 8], np.float32))
        assert engine.nan_samples == 1
        seconds = take_turns({"a": engine, "b": other}, [{"x": x}, {"x": x}], runs=3)
        assert set(seconds) == {"a", "b"}
        assert engine.seconds > 0
        # What was allocated on loading, but not the interpreter and its imports.
        assert 0.9 * BALLAST_BYTES <= engine.memory_bytes() < 2 * BALLAST_BYTES


def test_an_error_on_loading_comes_back_as_itself(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match="lost with 2 threads"), Engine(FAILING, tmp_path / "lost", 2):
        pass


@pytest.mark.parametrize(
    ("most", "taken"), [(1, "d"), (2, "a, d"), (3, "a, b, d"), (4, "a, b, c, d"), (9, "a, b, c, d")]
)
def test_the_extremes_of_padding_are_among_few_utterances(most: int, taken: str) -> None:
    silence = np.zeros(1, np.float32)
    recorded = [
        ReferenceUtterance(name, frames, 1.0, 0, {}, silence, np.zeros(1, np.int64), silence)
        for frames, name in enumerate("abcd")
    ]
    assert ", ".join(item.id for item in compare.at_most(most, recorded)) == taken


def test_kinds_of_ops_are_one_text() -> None:
    assert kinds(["mul", "add", "mul"]) == "add 1, mul 2"


@pytest.mark.parametrize("length", [1, 5, 9])
def test_the_unrolled_lstm_is_the_packed_one(length: int) -> None:
    torch.manual_seed(length)
    lstm = nn.LSTM(6, 4, batch_first=True, bidirectional=True)
    x = torch.randn(1, 9, 6)
    real = (torch.arange(9) < length).float()[None, :, None]
    expected, _ = lstm(x[:, :length])
    found = UnrolledLSTM(lstm)(x, real)
    torch.testing.assert_close(found[:, :length], expected)
    assert not found[:, length:].any()


def test_the_static_duration_model_is_the_dynamic_one(narrow: KModel) -> None:
    tokens = torch.zeros(1, 12, dtype=torch.int64)
    tokens[0, 1:6] = torch.tensor([3, 1, 4, 1, 5])
    torch.manual_seed(0)
    arguments = (torch.tensor([7]), 0.3 * torch.randn(1, VOICE_DIM), torch.tensor([0.7]))
    expected = DurationModel(narrow)(tokens[:, :7], *arguments)
    found = StaticDuration(narrow)(tokens, *arguments)
    names = ("durations", "encoded_text", "ref_style", "prosody_features", "prosody_style")
    for name, before, after in zip(names, expected, found, strict=True):
        per_token = before.ndim > 1 and before.shape[1] == 7
        torch.testing.assert_close(after[:, :7] if per_token else after, before, atol=2e-5, rtol=1e-4, msg=name)
        assert not per_token or not after[:, 7:].any(), name


def test_the_static_prosody_model_is_upstreams_at_any_padding(narrow: KModel) -> None:
    frames, bucket = 9, Bucket(14)
    torch.manual_seed(0)
    aligned = torch.zeros(1, PROSODY_DIM, bucket.frames)
    aligned[:, :, :frames] = torch.randn(1, PROSODY_DIM, frames)
    style = 0.3 * torch.randn(1, STYLE_DIM)
    mask = (torch.arange(bucket.frames) < frames).float()[None, None]
    ratio = torch.from_numpy(frame_ratio(frames, bucket))
    expected = narrow.predictor.F0Ntrain(aligned[:, :, :frames], style)
    found = StaticProsody(narrow)(aligned, style, mask, ratio)
    for before, after in zip(expected, found, strict=True):
        scale = float(before.abs().max())
        torch.testing.assert_close(after[:, 0, : 2 * frames], before, atol=1e-5 * scale, rtol=1e-4)
        assert not after[:, 0, 2 * frames :].any()


@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        ({"fp32_snr_db_min": 80.0, "fp16_sum_max": 65_504.0}, None),
        ({"fp32_snr_db_min": 79.99, "fp16_sum_max": 1.0}, "here: fp32_snr_db_min is 79.99; it must be at least 80"),
        ({"fp32_snr_db_min": 90.0, "fp16_sum_max": 79_970.0}, "fp16_sum_max is 79970; it must be at most 65504"),
        ({"fp32_snr_db_min": 90.0, "fp16_sum_max": float("nan")}, "fp16_sum_max is nan"),
        ({"fp32_snr_db_min": 90.0, "fp16_total": 1.0}, "the gate fp16_sum_max judges nothing"),
    ],
)
def test_a_gate_holds_a_figure_of_the_report(figures: dict[str, float], fault: str | None) -> None:
    gates = {"fp32_snr_db_min": 80.0, "fp16_sum_max": 65_504.0}
    if fault is None:
        compare.check_gates(figures, gates, "here")
    else:
        with pytest.raises(KokoroNpuError, match=fault):
            compare.check_gates(figures, gates, "here")


def _write_reports(folder: Path, frames: int, slow: float) -> None:
    figures = {"waveform_corr_min": 1.0, "magspec_corr_min": 1.0, "logmel_mae_max": 0.01}
    parts = {"litert": ("fp32", "int8"), "executorch": ("fp32",), "coreml": ("fp32", "fp16")}
    for runtime, precisions in parts.items():
        report: dict[str, object] = {"precision": "+".join(precisions), "frames": frames}
        for place, precision in enumerate(precisions):
            report |= {f"{precision}_{name}": value for name, value in figures.items()}
            report |= {f"{precision}_snr_db_min": 90.0 - 40 * place - frames / 100, f"{precision}_bytes": 10**6}
            if runtime == "coreml":
                report |= {f"{precision}_ops": 9, f"{precision}_ops_within_ane_width": 7}
            else:
                report[f"{precision}_time_ratio"] = slow + place
        if runtime == "litert":
            report |= {"onnx_memory_bytes": 5_000_000, "int8_memory_bytes": 5_000_000}
            integer: dict[str, object] = {f"w8a16_{name}": value for name, value in figures.items()}
            integer |= {"w8a16_snr_db_min": 31.0, "w8a16_time_ratio": 30.0, "precision": "w8a16", "frames": frames}
            write_json(folder / "runtimes/litert/w8a16.json", integer)
            others = {"fp32_snr_db_min": 70.0, "int8_snr_db_min": 55.0, "fp32_duration_mismatches": 0}
            others |= {
                f"{precision}_{part}_bytes": 300_000 for precision in precisions for part in ("duration", "prosody")
            }
            write_json(folder / "runtimes/litert/parts.json", {**others, "precision": "fp32+int8"})
            write_json(folder / "parity" / f"{frames}.json", {"fp32_snr_db_min": 105.0})
        write_json(folder / "runtimes" / runtime / f"{frames}.json", report)


def _collect(folder: Path, frames: list[int]) -> pd.DataFrame:
    return table.collect(folder / "runtimes", folder / "parity", frames)


def test_the_table_has_a_row_for_each_runtime_bucket_and_precision(tmp_path: Path) -> None:
    _write_reports(tmp_path, 80, 0.5)
    _write_reports(tmp_path, 40, 1.5)
    found = _collect(tmp_path, [40, 80])
    rows = found.loc[found["frames"] == 40, ["runtime", "precision"]].to_numpy().tolist()
    assert rows == [
        ["onnxruntime", "fp32"],
        ["coreml", "fp32"],
        ["coreml", "fp16"],
        ["executorch", "fp32"],
        ["litert", "fp32"],
        ["litert", "int8"],
        ["litert, all three parts", "fp32"],
        ["litert, all three parts", "int8"],
        ["litert", "w8a16"],
    ]
    assert found.loc[found["precision"] == "w8a16", "frames"].to_list() == [40]
    whole = found[found["runtime"] == "litert, all three parts"].set_index("precision")
    assert whole["bytes"].to_dict() == {"fp32": 1_600_000, "int8": 1_600_000}
    # The decoder's 89.6 dB and the part's 70; the decoder's 49.6 and the part's 55.
    assert whole["snr_db_min"].to_dict() == {"fp32": 70.0, "int8": pytest.approx(49.6)}
    assert found.iloc[-1]["bytes"] == 364_000_000
    published = found.iloc[-2]
    assert (published["frames"], published["magspec_corr_min"]) == (512, 0.9994)
    assert pd.isna(published["snr_db_min"])
    summary = table.summarize(found)
    assert summary["coreml_fp16_snr_db_min"] == 49.2
    assert summary["litert_three_parts_int8_bytes"] == 1_600_000
    _write_reports(tmp_path, 120, 0.6)
    # One bucket timed wrong does not decide: the median of 1.5, 0.5 and 0.6.
    summary = table.summarize(_collect(tmp_path, [40, 80, 120]))
    assert summary["executorch_fp32_time_ratio"] == pytest.approx(0.6)
    assert summary["fastest"] in ("executorch_fp32", "litert_fp32")
    lines = shown.markdown(found).splitlines()
    assert len(lines) == 2 + len(found)
    assert len({line.count("|") for line in lines}) == 1
    (line,) = (line for line in lines if line.startswith("| coreml | 80 | fp16 | 1.0 | 49.2 |"))
    assert "| 7 of 9 |" in line


def test_a_missing_report_names_its_pipeline(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"holds no runtime's reports: run dvc repro pipelines/<runtime>"):
        _collect(tmp_path, [40])
    _write_reports(tmp_path, 40, 1.0)
    (tmp_path / "runtimes/coreml/40.json").unlink()
    with pytest.raises(KokoroNpuError, match=r"40\.json does not exist: run dvc repro pipelines/coreml/dvc\.yaml"):
        _collect(tmp_path, [40])


def test_a_further_runtime_is_in_the_table_by_its_reports_alone(tmp_path: Path) -> None:
    _write_reports(tmp_path, 40, 1.0)
    figures = {"frames": 40, "precision": "fp32", "fp32_snr_db_min": 99.0, "fp32_time_ratio": 0.25}
    write_json(tmp_path / "runtimes/newcomer/40.json", figures)
    found = _collect(tmp_path, [40])
    (row,) = found[found["runtime"] == "newcomer"].to_dict("records")
    assert (row["frames"], row["snr_db_min"]) == (40, 99.0)
    assert table.summarize(found)["fastest"] == "newcomer_fp32"


def test_a_scope_is_named_by_the_class_and_must_be_in_the_file(narrow: KModel, tmp_path: Path) -> None:
    head = litert.scope(StaticDecoder(narrow.decoder, Bucket(4)), Head)
    assert head == f"{Head.__module__}.Head_head"
    source = tmp_path / "decoder.tflite"
    source.write_bytes(b"TFL3 decoder.StaticDecoder/generator.StaticGenerator_generator/elsewhere.Head_head/Conv2d")
    for quantize in (
        lambda: litert.quantize_weights(source, tmp_path / "out", kept=[head]),
        lambda: litert.quantize_weights(source, tmp_path / "out", half=[head]),
        lambda: litert.quantize_convolutions(source, tmp_path / "out", [], kept=[head]),
    ):
        with pytest.raises(KokoroNpuError, match=rf"decoder\.tflite has no op in {head}"):
            quantize()


def _variable(name: str, shape: tuple[int, ...] = (), val: object = None) -> SimpleNamespace:
    return SimpleNamespace(name=name, shape=shape, val=val, dtype=type("fp32", (), {}))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("pad_type", ["valid", "custom"])
@pytest.mark.parametrize("op_type", ["conv", "conv_transpose", "max_pool"])
def test_the_interpreter_pads_as_mil_says(op_type: str, pad_type: str, rank: int) -> None:
    torch.manual_seed(rank)
    x, bias, size = torch.randn(1, 4, *[9] * rank), torch.randn(6), [3] * rank
    pad = [2, 2] * rank if pad_type == "custom" else None
    given: dict[str, Any] = {"strides": [2] * rank, "pad_type": pad_type, "pad": pad}
    padding = 2 if pad else 0
    if op_type == "max_pool":
        given["kernel_sizes"] = [4] * rank
        pool = [nn.functional.max_pool1d, nn.functional.max_pool2d][rank - 1]
        expected = pool(x, 4, 2, padding)
    else:
        shape = (6, 4, *size) if op_type == "conv" else (4, 6, *size)
        weight = torch.randn(shape)
        given |= {"weight": weight.numpy(), "bias": bias.numpy(), "dilations": [1] * rank, "groups": 1}
        name = "conv_transpose" if op_type == "conv_transpose" else "conv"
        expected = getattr(nn.functional, f"{name}{rank}d")(x, weight, bias, stride=2, padding=padding)
    variable, result = _variable("x", tuple(x.shape)), _variable("y", tuple(expected.shape))
    constants = {name: None if v is None else _variable(name, val=v) for name, v in given.items()}
    op = SimpleNamespace(op_type=op_type, inputs={"x": variable, **constants}, outputs=[result])
    run = Interpreter(SimpleNamespace(operations=[op], inputs={"x": variable}, outputs=[result]))
    np.testing.assert_allclose(run({"x": x.numpy()}), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_an_op_without_a_meaning_is_named() -> None:
    op = SimpleNamespace(op_type="gru", inputs={}, outputs=[])
    with pytest.raises(KokoroNpuError, match=r"the MIL op gru has no meaning in runtimes/mil\.py"):
        Interpreter(SimpleNamespace(operations=[op], inputs={}, outputs=[]))
