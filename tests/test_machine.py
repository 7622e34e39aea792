"""Memory a new process can take: the smaller of the machine's and the cgroup's."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kokoro_npu import machine


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands in for /sys/fs/cgroup."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8_000))
    return tmp_path


def test_without_a_limit_the_machine_counts(cgroup: Path) -> None:
    assert machine.available_bytes() == 8_000
    (cgroup / "memory.max").write_text("max\n", encoding="ascii")
    (cgroup / "memory.current").write_text("5000\n", encoding="ascii")
    assert machine.available_bytes() == 8_000


def test_a_limit_counts_less_what_is_used_and_cannot_be_reclaimed(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text("6000\n", encoding="ascii")
    (cgroup / "memory.current").write_text("5000\n", encoding="ascii")
    assert machine.available_bytes() == 1_000
    (cgroup / "memory.stat").write_text("anon 1000\ninactive_file 3000\n", encoding="ascii")
    assert machine.available_bytes() == 4_000


def test_version_1_groups(cgroup: Path) -> None:
    memory = cgroup / "memory"
    memory.mkdir()
    (memory / "memory.limit_in_bytes").write_text("3000\n", encoding="ascii")
    (memory / "memory.usage_in_bytes").write_text("3500\n", encoding="ascii")
    assert machine.available_bytes() == 0
    (cgroup / "own").write_text("4:memory:/job/7\n0::/\n", encoding="ascii")
    (memory / "memory.limit_in_bytes").write_text("9000\n", encoding="ascii")
    (memory / "job" / "7").mkdir(parents=True)
    (memory / "job" / "memory.limit_in_bytes").write_text("5000\n", encoding="ascii")
    (memory / "job" / "memory.usage_in_bytes").write_text("500\n", encoding="ascii")
    assert machine.available_bytes() == 4_500


def test_a_limit_on_a_parent_group_counts(cgroup: Path) -> None:
    (cgroup / "own").write_text("0::/build.slice/run.scope\n", encoding="ascii")
    (cgroup / "build.slice" / "run.scope").mkdir(parents=True)
    for group, limit in (("build.slice", "4000"), ("build.slice/run.scope", "max")):
        (cgroup / group / "memory.max").write_text(limit, encoding="ascii")
        (cgroup / group / "memory.current").write_text("1500", encoding="ascii")
    assert machine.available_bytes() == 2_500
