"""The doctor finds what is missing, says what to do, and changes nothing."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from kokoro_npu.cli import doctor

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_compiler_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kokoro_npu.compile.toolchain.missing_reason", lambda: None)


def states(root: Path = ROOT) -> dict[str, tuple[str, str]]:
    return {finding.what: (finding.state, finding.todo) for finding in doctor.examine(root)}


def test_whatever_is_not_right_comes_with_what_to_do() -> None:
    found = list(doctor.examine(ROOT))
    assert [f for f in found if f.state != doctor.OK and not f.todo] == []
    assert {f.what for f in found} >= {
        "Python",
        "memory",
        "disk",
        "git",
        "dvc",
        "packages",
        "NPU compiler",
        "AI Hub token",
    }


def test_another_python_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert states()["Python"][0] == doctor.MISSING


def test_little_memory_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_bytes", lambda: 4 * 10**9)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 10**9})())
    found = doctor.examine(ROOT)
    memory = [f for f in found if f.what == "memory"]
    assert [f.state for f in memory] == [doctor.NOTE]
    assert states()["disk"][0] == doctor.MISSING


def test_a_package_that_is_absent_or_not_as_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "constraints.txt").write_text("# pins\nonnx==0.0.1\nnumpy==9\n")
    monkeypatch.setattr(doctor, "_required", lambda: ["onnx"])
    finding = doctor._packages(tmp_path)
    assert (finding.state, finding.found) == (doctor.NOTE, f"onnx {version('onnx')} (pinned 0.0.1)")
    monkeypatch.setattr(doctor, "_required", lambda: ["onnx", "no-such-package"])
    finding = doctor._packages(tmp_path)
    assert (finding.state, finding.found) == (doctor.MISSING, "not installed: no-such-package")


def test_no_compiler_is_only_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kokoro_npu.compile.toolchain.missing_reason", lambda: "no compiler: not here")
    state, todo = states()["NPU compiler"]
    assert state == doctor.NOTE
    assert "glibc 2.35" in todo


def test_the_token_is_looked_for_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ini = tmp_path / "client.ini"
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(ini))
    assert states()["AI Hub token"][0] == doctor.NOTE
    ini.write_text("[api]\napi_token = s3cr3t-s3cr3t\napi_url = https://hub.invalid\n")
    finding = doctor._token()
    assert finding.state == doctor.OK
    assert "s3cr3t" not in finding.found
    ini.write_text("[api]\napi_token = \n")
    finding = doctor._token()
    assert (finding.state, "api_token" in finding.found) == (doctor.NOTE, True)


def test_the_command_prints_every_line_and_fails_only_for_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [doctor.Finding(doctor.OK, "Python", "3.11.7"), doctor.Finding(doctor.NOTE, "token", "none", "get one")]
    monkeypatch.setattr("kokoro_npu.cli.doctor.examine", lambda _: here)
    run = CliRunner().invoke(doctor.command, [str(tmp_path)])
    assert run.exit_code == 0
    assert run.output.splitlines() == ["ok    Python  3.11.7", "note  token   none", "              → get one"]
    here.append(doctor.Finding(doctor.MISSING, "disk", "1 GB", "make room"))
    assert CliRunner().invoke(doctor.command, [str(tmp_path)]).exit_code == 1
    assert list(tmp_path.iterdir()) == []
