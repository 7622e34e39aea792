"""Options: an allow-list, because ONNX Runtime and the backend take anything."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from kokoro_npu.cli import bisect, qnn_cost
from kokoro_npu.cli.main import cli
from kokoro_npu.compile.chips import read_chip
from kokoro_npu.compile.options import CompileSettings, Spec, Target, provider_options
from kokoro_npu.emulation.bisect import Cut
from kokoro_npu.errors import KokoroNpuError
from tests.small_graphs import INPUTS, decoder_like

ROOT = Path(__file__).resolve().parents[1]

SM8650 = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8)


def test_options_follow_from_target_and_settings() -> None:
    settings = CompileSettings(
        optimization_level=1,
        options={"vtcm_mb": 4, "enable_htp_graph_splitting": 1, "dump_json_qnn_graph": True},
    )
    assert provider_options(SM8650, settings) == {
        "soc_model": "57",
        "htp_arch": "75",
        "vtcm_mb": "4",
        "enable_htp_fp16_precision": "1",
        "htp_graph_finalization_optimization_mode": "1",
        "offload_graph_io_quantization": "0",
        "enable_htp_graph_splitting": "1",
        "dump_json_qnn_graph": "1",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"profilling_level": "basic"},
            "unknown QNN option 'profilling_level'; did you mean profiling_level",
        ),
        ({"zzz": "1"}, "unknown QNN option 'zzz'; known: dump_json_qnn_graph"),
        ({"profiling_level": "loud"}, "profiling_level=loud: must be one of off, basic, detailed, optrace"),
        ({"vtcm_mb": 99}, "sm8650 has 8 MB"),
        ({"vtcm_mb": 0}, "sm8650 has 8 MB"),
        ({"extended_udma": 1}, "extended_udma is refused for sm8650.*6007"),
        ({"htp_bf16_enable": 1}, "bfloat16 needs soc_model 88"),
        ({"skip_backend_op_validation": 1}, "hides which nodes HTP refuses"),
        ({"soc_model": 60}, r"set target\.soc_model"),
    ],
)
def test_bad_options_are_named(options: dict[str, str | int | bool], message: str) -> None:
    with pytest.raises(KokoroNpuError, match=message):
        provider_options(SM8650, CompileSettings(options=options))


def test_what_a_newer_chip_can_do_is_not_refused_there() -> None:
    newer = Target("sm8750", "Snapdragon 8 Elite", 69, 79, 8)
    assert provider_options(newer, CompileSettings(options={"extended_udma": 1}))["extended_udma"] == "1"
    with pytest.raises(KokoroNpuError, match="htp_bf16_enable is refused for sm8750"):
        provider_options(newer, CompileSettings(options={"htp_bf16_enable": 1}))


CHIP = "name: new\nchip: New\nsoc_model: 99\nhtp_arch: 85\nvtcm_mb: 8\n"


def test_a_chip_is_a_file_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(CHIP, encoding="utf-8")
    assert read_chip("new", tmp_path) == Target("new", "New", 99, 85, 8)
    with pytest.raises(KokoroNpuError, match=r"'neww' is not in the table of chips; did you mean new\? "):
        read_chip("neww", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("htp_arch: 85", "htp_arch: 0", r"new\.yaml: htp_arch is 0; it must be a positive integer"),
        ("soc_model: 99", "soc_model: '99'", r"soc_model is '99'; it must be"),
        ("vtcm_mb: 8", "", r"new\.yaml describes no chip: .*'vtcm_mb'"),
        ("vtcm_mb: 8", "vtcm: 8", r"new\.yaml describes no chip: .*'vtcm'"),
        ("name: new", "name: [", r"new\.yaml describes no chip: "),
        (CHIP, "", r"new\.yaml describes no chip: "),
    ],
)
def test_a_file_that_describes_no_chip_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "new.yaml").write_text(CHIP.replace(old, new), encoding="utf-8")
    with pytest.raises(KokoroNpuError, match=message) as caught:
        read_chip("new", tmp_path)
    assert "\n" not in str(caught.value)


def test_the_commands_take_their_chip_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any chip of conf/target below the working directory; neither command knows a chip of its own."""
    seen: list[Target] = []

    def cost(_path: Path, _frames: int, spec: Spec) -> None:
        seen.append(spec.target)
        raise KokoroNpuError("stop here")

    def compare(_model: object, _feeds: object, target: Target, *_: object) -> Iterator[Cut]:
        seen.append(target)
        yield Cut("node", "Op", "tensor", 200.0, "")

    monkeypatch.setattr(qnn_cost, "graph_cost", cost)
    monkeypatch.setattr(bisect, "compare", compare)
    monkeypatch.setattr(bisect, "require_emulation", lambda: None)
    model = decoder_like(tmp_path / "m.onnx")
    save_file({n: np.zeros(s, np.float32) for n, s in INPUTS.items()}, tmp_path / "feeds.safetensors")
    shutil.copytree(ROOT / "conf" / "target", tmp_path / "conf" / "target")
    (tmp_path / "conf" / "target" / "new.yaml").write_text(CHIP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for command in (["qnn-cost", str(model)], ["bisect", str(model), "feeds.safetensors"]):
        for options in ([], ["--target", "new"]):
            CliRunner().invoke(cli, [*command, *options])
        wrong = CliRunner().invoke(cli, [*command, "--target", "sm8651"])
        assert "'sm8651' is not in the table of chips; did you mean sm8650" in str(wrong.exception)
    assert [chip.name for chip in seen] == ["sm8650", "new"] * 2
