"""Qualcomm's compiler as the ``onnxruntime-qnn`` wheel ships it: is it here, which version, how to run it.

The compiler always runs in a child process: it can die of a signal (graph splitting beyond 65,535 columns does), needs
gigabytes that only a process end gives back, and its libraries must not stay loaded in the caller.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.machine import available_bytes

BACKEND = "qnn-htp-offline"
"""What reports call this machine's compiler."""

_PACKAGE = "onnxruntime_qnn"
_LIBRARIES = ("libQnnHtp.so", "libHtpPrepare.so", "libQnnSystem.so", "libQnnIr.so")
_ROOT = str(Path(__file__).resolve().parents[2])
_POLL_SECONDS = 0.2
_LINE_SECONDS = 30.0
_ENTRY = "import sys; from kokoro_npu.compile.worker import main; sys.exit(main(sys.argv[1]))"


@dataclass(frozen=True)
class WorkerRun:
    """How a worker ended.

    Attributes:
        result: what the worker reported; empty when it died before it could.
        returncode: exit status, negative for a signal as in ``subprocess``.
        log: everything the worker and the native libraries printed.
        seconds: wall time.
        peak_rss_bytes: largest resident set seen by polling or told by the worker.
        guarded: the worker was ended because the machine ran out of memory.
    """

    result: dict[str, Any]
    returncode: int
    log: str
    seconds: float
    peak_rss_bytes: int
    guarded: bool = False

    @property
    def failure(self) -> str:
        """Why there is no result, in a few words; empty when there is one."""
        if self.guarded:
            return "the process was ended before it took the machine's last memory"
        if self.returncode < 0:
            return f"the process died of {signal.Signals(-self.returncode).name}"
        if self.result.get("ok"):
            return ""
        return str(self.result.get("error") or f"the process ended with status {self.returncode}")

    def answer(self, what: str) -> dict[str, Any]:
        """The worker's result.

        Raises:
            KokoroNpuError: there is none; the message begins with ``what``.
        """
        if self.failure:
            raise KokoroNpuError(f"{what}: {self.failure}")
        return self.result


def library_dir() -> Path | None:
    """Directory of the wheel's native libraries, or None without the wheel; nothing is imported or loaded."""
    spec = importlib.util.find_spec(_PACKAGE)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def missing_reason() -> str | None:
    """Why the compiler cannot run on this machine, in one line; None when it can.

    The wheel exists for Linux x86-64 with glibc 2.35 or newer (its libraries load it at import of the provider).
    """
    where = library_dir()
    if where is None:
        return f"no compiler: onnxruntime-qnn is not installed (no wheel for {sys.platform}?)"
    for name in _LIBRARIES:
        if not (where / name).is_file():
            return f"no compiler: onnxruntime-qnn holds no {name}: the offline HTP compiler exists on Linux x86-64 only"
    run = run_worker("probe", {})
    if not run.failure:
        return None
    # A library that does not load ends the process before it can answer; its log then tells most.
    detail = run.failure if run.result or run.returncode < 0 else (run.log.strip().splitlines() or [run.failure])[-1]
    return f"no compiler: the QNN execution provider does not load: {' '.join(detail.split())[:300]}"


def run_worker(
    command: str,
    request: Mapping[str, Any],
    *,
    cwd: Path | None = None,
    describe: str | None = None,
    reserve_gib: float = 0.0,
) -> WorkerRun:
    """Run one command of ``kokoro_npu.compile.worker`` in a child process and wait for it.

    Args:
        command: ``probe``, ``compile``, ``placement``, ``emulate`` or ``inspect``.
        request: the command's arguments, JSON-able.
        cwd: working directory of the child.
        describe: text of the progress line; None shows none.
        reserve_gib: end the child when less than half of this memory is left on the machine, before the kernel ends
            some other process.

    Returns:
        How it ended; a crash is told, not raised.
    """
    least = reserve_gib * 2**30 / 2
    with tempfile.TemporaryDirectory(prefix="kokoro-qnn-") as scratch:
        request_path, result_path, log_path = (Path(scratch) / n for n in ("request.json", "result.json", "log"))
        request_path.write_text(
            json.dumps({"command": command, "result": str(result_path), **request}), encoding="utf-8"
        )
        # This library first, whatever else the user's path holds.
        paths = [_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        start = time.monotonic()
        peak, guarded = 0, False
        with open(log_path, "wb") as log:
            # -P: the child's working directory must not shadow modules.
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _ENTRY, str(request_path)],
                cwd=cwd, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
            try:
                process = psutil.Process(child.pid)
                # disable=None: no bar where there is no terminal; lines then tell that the build is alive.
                bar = tqdm(desc=describe, bar_format="{desc}: {elapsed}{postfix}", disable=None if describe else True)
                next_line = _LINE_SECONDS
                while child.poll() is None:
                    time.sleep(_POLL_SECONDS)
                    with contextlib.suppress(psutil.Error):  # it has just ended
                        rss = int(process.memory_info().rss)
                        peak = max(peak, rss)
                        bar.set_postfix_str(f"{rss / 2**30:.1f} GiB")
                    elapsed = time.monotonic() - start
                    if describe and bar.disable and elapsed >= next_line:
                        next_line += _LINE_SECONDS
                        print(f"{describe}: {elapsed:.0f} s, {peak / 2**30:.1f} GiB", file=sys.stderr, flush=True)
                    if least and available_bytes() < least:
                        guarded = True
                        child.kill()
                        child.wait()
                bar.close()
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        result: dict[str, Any] = {}
        if result_path.is_file():
            result = json.loads(result_path.read_text(encoding="utf-8"))
        text = log_path.read_text(encoding="utf-8", errors="replace")
    peak = max(peak, int(result.get("peak_rss_bytes", 0)))
    return WorkerRun(result, child.returncode, text, time.monotonic() - start, peak, guarded)
