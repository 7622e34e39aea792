"""Options: an allow-list, because ONNX Runtime and the backend take anything."""

from dataclasses import replace

import pytest

from kokoro_npu.compile.options import CompileSettings, Target, provider_options, session_entries
from kokoro_npu.errors import KokoroNpuError

SM8650 = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8)


def test_options_follow_from_target_and_settings() -> None:
    settings = CompileSettings(
        optimization_level=1, graph_splitting=True, options={"vtcm_mb": 4, "dump_json_qnn_graph": True}
    )
    assert provider_options(SM8650, settings, "/lib/libQnnHtp.so") == {
        "backend_path": "/lib/libQnnHtp.so",
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
            "unknown QNN option 'profilling_level'; did you mean 'profiling_level'",
        ),
        ({"zzz": "1"}, "unknown QNN option 'zzz'; known are: dump_json_qnn_graph"),
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
        provider_options(SM8650, CompileSettings(options=options), "")


def test_what_a_newer_chip_can_do_is_not_refused_there() -> None:
    newer = Target("sm8750", "Snapdragon 8 Elite", 69, 79, 8)
    assert provider_options(newer, CompileSettings(options={"extended_udma": 1}), "")["extended_udma"] == "1"
    with pytest.raises(KokoroNpuError, match="htp_bf16_enable is refused for sm8750"):
        provider_options(newer, CompileSettings(options={"htp_bf16_enable": 1}), "")


@pytest.mark.parametrize("level", [0, 4])
def test_levels_are_1_to_3(level: int) -> None:
    with pytest.raises(KokoroNpuError, match=f"optimization_level={level}: must be 1, 2 or 3"):
        provider_options(SM8650, CompileSettings(optimization_level=level), "")


def test_target_numbers_are_positive() -> None:
    with pytest.raises(KokoroNpuError, match=r"target\.htp_arch=0"):
        provider_options(replace(SM8650, htp_arch=0), CompileSettings(), "")


def test_session_entries_are_checked_too() -> None:
    assert session_entries(ep__context_enable="1") == {"ep.context_enable": "1"}
    with pytest.raises(KokoroNpuError, match=r"'ep\.context_enabled' is unknown; did you mean 'ep\.context_enable'"):
        session_entries(ep__context_enabled="1")
