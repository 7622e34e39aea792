"""What this machine lacks for the pipeline, and what to do about it."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kokoro_npu.compile.memory import estimate_bytes
from kokoro_npu.compile.options import CompileSettings
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.machine import available_bytes

OK, NOTE, MISSING = "ok", "note", "MISSING"
"""Works; something optional is absent; the default build cannot run."""

_GB = 10**9
BUILD_MEMORY_BYTES = 12 * 2**30
"""What the default build needs (`make repro` on two cores)."""
BUILD_DISK_BYTES = 8 * _GB
"""Environment 2.3 GB, artifacts 1.7 GB, DVC's cache of them 1.9 GB, and room for another precision."""
_LONGEST_COMPILED = 400


@dataclass(frozen=True)
class Finding:
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


def examine(root: Path | str = ".") -> list[Finding]:
    """Look at this machine and at the clone in ``root``.

    Nothing is written, and no network is used.
    """
    root = Path(root)
    return [finding for check in _CHECKS for finding in check(root)]


def _python(_: Path) -> Iterator[Finding]:
    right = sys.version_info[:2] == (3, 11)
    todo = "" if right else "install Python 3.11 and name it: make PYTHON=/path/to/python3.11 setup"
    yield Finding(OK if right else MISSING, "Python", platform.python_version(), todo)


def _memory(_: Path) -> Iterator[Finding]:
    free = available_bytes()
    enough = free >= BUILD_MEMORY_BYTES
    todo = "" if enough else "close programs, or build short buckets alone: dvc exp run -S bucket.frames=120"
    yield Finding(OK if enough else NOTE, "memory", f"{free / _GB:.1f} GB free, the default build wants "
                  f"{BUILD_MEMORY_BYTES / _GB:.1f}", todo)  # fmt: skip
    need = estimate_bytes(_LONGEST_COMPILED, "w8a16", CompileSettings())
    if free < need:
        yield Finding(NOTE, "memory", f"compiling {_LONGEST_COMPILED} frames needs {need / _GB:.1f} GB",
                      "nothing: such buckets are reported as not compiled, the rest goes on")  # fmt: skip


def _disk(root: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(root).free
    enough = free >= BUILD_DISK_BYTES
    todo = "" if enough else "make room; `dvc gc --workspace` drops results that no file of this clone uses"
    yield Finding(OK if enough else MISSING, "disk", f"{free / _GB:.1f} GB free, a first build takes "
                  f"{BUILD_DISK_BYTES / _GB:g}", todo)  # fmt: skip


def _programs(root: Path) -> Iterator[Finding]:
    for program, why, how in (
        ("git", "DVC needs it", "install git"),
        ("make", "make repro, make test", "install make, or follow the few lines of the Makefile by hand"),
        ("dvc", "runs the pipeline", "source .venv/bin/activate, or make setup first"),
    ):
        found = shutil.which(program)
        yield Finding(OK if found else MISSING, program, found or f"not on the PATH ({why})", "" if found else how)
    if (
        shutil.which("git")
        and subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--verify", "HEAD"], capture_output=True, check=False
        ).returncode
    ):
        yield Finding(NOTE, "git clone", "no commit here", "the report then has no baseline; work in a clone")


def _packages(root: Path) -> Iterator[Finding]:
    pins = _pins(root / "constraints.txt")
    absent, other = [], []
    for name in _required():
        try:
            version = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
            continue
        pin = pins.get(_plain(name))
        if pin and pin != version:
            other.append(f"{name} {version} (pinned {pin})")
    if absent:
        yield Finding(MISSING, "packages", f"not installed: {', '.join(absent)}", "rm -rf .venv; make setup")
    elif other:
        todo = "make setup brings the pinned ones; figures may differ with others"
        yield Finding(NOTE, "packages", ", ".join(other), todo)
    else:
        yield Finding(OK, "packages", "all installed" + (", as pinned" if pins else ""))


def _required() -> list[str]:
    try:
        entries = importlib.metadata.requires("kokoro-npu") or []
    except importlib.metadata.PackageNotFoundError:
        return ["kokoro-npu"]
    return [re.split(r"[ ;<>=!\[(]", entry)[0] for entry in entries if "extra ==" not in entry]


def _pins(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {_plain(name): pin for name, mark, pin in (line.partition("==") for line in lines) if mark}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _qnn(_: Path) -> Iterator[Finding]:
    from kokoro_npu.compile.toolchain import missing_reason  # starts a process of a second

    if (reason := missing_reason()) is None:
        version = importlib.metadata.version("onnxruntime-qnn")
        yield Finding(OK, "NPU compiler", f"onnxruntime-qnn {version} loads")
        return
    libc = " ".join(platform.libc_ver()) or "no glibc"
    todo = (
        "make setup installs it on Linux x86-64 with glibc 2.35 or newer; elsewhere nothing is compiled for the NPU, "
        "the rest works; or compile with a token: dvc exp run -S compile=aihub"
    )
    yield Finding(NOTE, "NPU compiler", f"{reason} (this is {platform.system()} {platform.machine()}, {libc})", todo)


def _token(_: Path) -> Iterator[Finding]:
    from kokoro_npu.aihub.credentials import ini_path, read_credentials

    if not ini_path().is_file():
        todo = "only compile=aihub needs it: https://workbench.aihub.qualcomm.com (Account), then qai-hub configure"
        yield Finding(NOTE, "AI Hub token", f"{ini_path()} does not exist", todo)
        return
    try:
        yield Finding(OK, "AI Hub token", f"in {read_credentials().path} (not tried)")
    except KokoroNpuError as error:
        yield Finding(NOTE, "AI Hub token", str(error), "only compile=aihub needs it")


def _clone(root: Path) -> Iterator[Finding]:
    if not (root / "dvc.yaml").is_file():
        yield Finding(NOTE, "clone", f"{root.resolve()} holds no dvc.yaml", "run it in a clone to build")
        return
    built = (root / "artifacts/weights/model.safetensors").is_file()
    yield Finding(OK if built else NOTE, "build", "artifacts/ is here" if built else "nothing is built yet",
                  "" if built else "make repro, or `dvc pull dvc.yaml` where a remote is set up")  # fmt: skip


def _cores(_: Path) -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    enough = cores >= 2
    yield Finding(OK if enough else NOTE, "cores", str(cores), "" if enough else "the build works, at half the pace")


_CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    _python, _cores, _memory, _disk, _programs, _packages, _qnn, _token, _clone,
)  # fmt: skip
