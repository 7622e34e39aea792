"""``kokoro-npu doctor``: what this machine lacks for the pipeline, and what to do about it."""

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kokoro_npu.build import places
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.machine import available_bytes
from kokoro_npu.versions import tool_versions
from kokoro_npu.weights.canonical import MODEL

OK, NOTE, MISSING = "ok", "note", "MISSING"
"""Works; something optional is absent; the default build cannot run."""

_GB = 10**9
BUILD_MEMORY_BYTES = 12 * 2**30
"""What the default build needs (`make repro` on two cores)."""
BUILD_DISK_BYTES = 8 * _GB
"""Environment 2.3 GB, artifacts 1.7 GB, DVC's cache of them 1.9 GB, and room for another precision."""
_PROGRAMS = {
    "git": "DVC needs it: install git",
    "make": "install make, or follow the few lines of the Makefile by hand",
    "dvc": "it runs the pipeline: source .venv/bin/activate, or make setup first",
}


class Finding(NamedTuple):
    """One line of the doctor's report.

    Attributes:
        state: `OK`, `NOTE` or `MISSING`.
        what: what was looked at.
        found: what is there.
        todo: what to do; empty where nothing is.
    """

    state: str
    what: str
    found: str
    todo: str = ""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("clone", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(clone: Path) -> None:
    """Say what this machine lacks for the pipeline, and what to do about it.

    CLONE is the directory of the project (default: here). Nothing is changed, no network is used. The exit code is
    1 when the default build cannot run.
    """
    findings = list(examine(clone))
    widths = [max(len(finding[column]) for finding in findings) for column in (0, 1)]
    for state, what, found, todo in findings:
        click.echo(f"{state:<{widths[0]}}  {what:<{widths[1]}}  {found}")
        if todo:
            click.echo(f"{'':<{sum(widths) + 4}}→ {todo}")
    if any(finding.state == MISSING for finding in findings):
        sys.exit(1)


def examine(root: Path) -> Iterator[Finding]:
    """Look at this machine and at the clone in ``root``."""
    right = sys.version_info[:2] == (3, 11)
    yield _finding(right, MISSING, "Python", platform.python_version(),
                   "install Python 3.11 and name it: make PYTHON=/path/to/python3.11 setup")  # fmt: skip
    memory = available_bytes()
    yield _finding(memory >= BUILD_MEMORY_BYTES, NOTE, "memory",
                   f"{memory / _GB:.1f} GB free, the default build wants {BUILD_MEMORY_BYTES / _GB:.1f}",
                   "close programs, or build short buckets alone: dvc exp run -S bucket.frames=120")  # fmt: skip
    free = shutil.disk_usage(root).free
    yield _finding(free >= BUILD_DISK_BYTES, MISSING, "disk",
                   f"{free / _GB:.1f} GB free, a first build takes {BUILD_DISK_BYTES / _GB:g}",
                   "make room; `dvc gc --workspace` drops results that no file of this clone uses")  # fmt: skip
    for program, todo in _PROGRAMS.items():
        path = shutil.which(program)
        yield _finding(path is not None, MISSING, program, path or "not on the PATH", todo)
    yield _packages(root)
    yield _compiler()
    yield _token()
    built = (root / places.WEIGHTS / MODEL).is_file()
    yield _finding(built, NOTE, "build", "artifacts/ is here" if built else "nothing is built here",
                   "in a clone: make repro, or `dvc pull dvc.yaml` where a remote is set up")  # fmt: skip


def _finding(right: bool, otherwise: str, what: str, found: str, todo: str) -> Finding:
    return Finding(OK, what, found) if right else Finding(otherwise, what, found, todo)


def _packages(root: Path) -> Finding:
    installed = tool_versions(_required())
    if absent := [name for name, version in installed.items() if not version]:
        return Finding(MISSING, "packages", f"not installed: {', '.join(absent)}", "rm -rf .venv; make setup")
    path = root / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    pins = {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in lines)}
    other = [
        f"{name} {version} (pinned {pin})"
        for name, version in installed.items()
        if (pin := pins.get(canonicalize_name(name), version)) != version
    ]
    todo = "make setup brings the pinned ones; figures may differ with others"
    return _finding(not other, NOTE, "packages", ", ".join(other) or "all installed", todo)


def _required() -> list[str]:
    entries = importlib.metadata.requires("kokoro-npu") or []
    return [Requirement(entry).name for entry in entries if "extra ==" not in entry]


def _compiler() -> Finding:
    from kokoro_npu.compile.toolchain import missing_reason  # starts a process of a second

    if (reason := missing_reason()) is None:
        return Finding(OK, "NPU compiler", f"onnxruntime-qnn {importlib.metadata.version('onnxruntime-qnn')} loads")
    libc = " ".join(platform.libc_ver()) or "no glibc"
    todo = (
        "make setup installs it on Linux x86-64 with glibc 2.35 or newer; elsewhere nothing is compiled for the NPU, "
        "the rest works; or compile with a token: dvc exp run -S compile=aihub"
    )
    return Finding(NOTE, "NPU compiler", f"{reason} (this is {platform.system()} {platform.machine()}, {libc})", todo)


def _token() -> Finding:
    from kokoro_npu.aihub.credentials import read_credentials

    try:
        return Finding(OK, "AI Hub token", f"in {read_credentials().path} (not tried)")
    except KokoroNpuError as error:
        return Finding(NOTE, "AI Hub token", str(error), "only compile=aihub needs it")
