"""The summary shows the worst bucket, and how many buckets there are."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from kokoro_npu.build.reports import metrics_row
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate.summary import summarize
from kokoro_npu.files import write_json
from kokoro_npu.versions import tool_versions


def report(kind: str, **changes: Any) -> dict[str, Any]:
    reports: dict[str, dict[str, Any]] = {
        "parity": {
            "torch_snr_db_min": 114.0,
            "fp32_snr_db_min": 90.0,
            "quantized_snr_db_min": 25.0,
            "quantized_magspec_corr_min": 0.99,
            "quantized_logmel_mae_max": 0.1,
            "utterances": 4,
        },
        "audit": {"blocking_ops": 0, "dynamic_dims": 0, "nodes": 100, "nodes_on_npu": 100},
        "compile": {"compiled": True, "binary_bytes": 60, "seconds": 20.0, "peak_rss_bytes": 900},
        "profile": {
            "rtf_p50": 0.5,
            "torch_rtf_p50": 0.9,
            "latency_ms_p50": 1000.0,
            "peak_rss_bytes": 800,
            "gmacs": 78.0,
        },
    }
    return reports[kind] | {"precision": "w8a16"} | changes


def write(path: Path, frames: int, **changes: dict[str, Any]) -> None:
    for kind in ("parity", "audit", "compile", "profile"):
        write_json(path / kind / f"{frames}.json", report(kind, **changes.get(kind, {})))


def summary(path: Path, frames: list[int]) -> dict[str, Any]:
    return summarize(path, frames, "w8a16", "wheel")


def test_the_worst_of_each_kind_wherever_it_is(tmp_path: Path) -> None:
    write(tmp_path, 120, parity={"quantized_snr_db_min": 21.0, "utterances": 2}, audit={"nodes_on_npu": 99})
    write(
        tmp_path,
        400,
        parity={"quantized_logmel_mae_max": 0.4, "quantized_magspec_corr_min": 0.95, "fp32_snr_db_min": 88.0},
        audit={"blocking_ops": 1, "dynamic_dims": 2},
        compile={"binary_bytes": 105, "seconds": 148.0},
        profile={"rtf_p50": 0.7, "gmacs": 260.0},
    )
    write(tmp_path, 999, parity={"quantized_snr_db_min": -1.0})  # of an earlier build; not this one's
    found = summary(tmp_path, [120, 400])
    del found["versions"]
    assert found == {
        "buckets": 2,
        "frames": [120, 400],
        "precision": "w8a16",
        "weights_source": "wheel",
        "torch_snr_db_min": 114.0,
        "fp32_snr_db_min": 88.0,
        "quantized_snr_db_min": 21.0,
        "quantized_magspec_corr_min": 0.95,
        "quantized_logmel_mae_max": 0.4,
        "utterances_min": 2,
        "blocking_ops": 1,
        "dynamic_dims": 2,
        "nodes": 200,
        "nodes_on_npu": 199,
        "compiled_buckets": 2,
        "binary_bytes_max": 105,
        "binary_bytes_sum": 165,
        "compile_seconds_max": 148.0,
        "compile_peak_rss_bytes_max": 900,
        "rtf_p50_max": 0.7,
        "torch_rtf_p50_max": 0.9,
        "latency_ms_p50_max": 1000.0,
        "profile_peak_rss_bytes_max": 800,
        "gmacs_max": 260.0,
    }


def test_a_bucket_that_was_not_compiled_shows(tmp_path: Path) -> None:
    write(tmp_path, 120)
    write(tmp_path, 1800, compile={"compiled": False, "binary_bytes": 0})
    found = summary(tmp_path, [120, 1800])
    assert (found["buckets"], found["compiled_buckets"]) == (2, 1)


def test_a_bucket_without_a_value_hides_no_worse_one_and_makes_no_total(tmp_path: Path) -> None:
    write(tmp_path, 20, parity={"quantized_snr_db_min": None, "utterances": 0}, audit={"nodes_on_npu": None})
    write(tmp_path, 120)
    found = summary(tmp_path, [20, 120])
    assert (found["quantized_snr_db_min"], found["utterances_min"], found["nodes_on_npu"]) == (25.0, 0, None)


def test_missing_and_broken_reports_are_named(tmp_path: Path) -> None:
    write(tmp_path, 120)
    path = tmp_path / "audit" / "120.json"
    good = path.read_text(encoding="utf-8")
    path.write_text(good[:20], encoding="utf-8")
    with pytest.raises(KokoroNpuError, match=r"audit/120\.json is not JSON"):
        summary(tmp_path, [120])
    path.unlink()
    with pytest.raises(KokoroNpuError, match=r"audit/120\.json does not exist"):
        summary(tmp_path, [120])


def test_versions_are_public_ones() -> None:
    assert tool_versions(["torch", "no-such-tool"]) == {
        "torch": version("torch").split("+")[0],
        "no-such-tool": "",
    }


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("", ""),
        ("too wide: tensor noise is 216008 wide: a lot", "too wide"),
        ("out of memory: compile of 400 frames ended", "out of memory"),
        ("a reason that nobody gave short words to", "see why.txt"),
    ],
)
def test_metrics_hold_a_few_words_where_reports_have_a_sentence(reason: str, kept: str) -> None:
    report = {"reason": reason, "device_reason": reason, "backend": "qnn-htp-offline and more", "seconds": 1.5}
    assert metrics_row(report) == report | {"reason": kept, "device_reason": kept}
