"""Qualcomm's compiler as the ``onnxruntime-qnn`` wheel ships it: is it here, which version, how to run it.

The compiler always runs in a child process: it can die of a signal (graph splitting beyond 65,535 columns
does), needs gigabytes that only a process end gives back, and its libraries must not stay loaded in the
caller.
"""

import importlib.metadata
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
from kokoro_npu.versions import flat_versions

_PACKAGE = "onnxruntime_qnn"
_POLL_SECONDS = 0.2
_LINE_SECONDS = 30.0
# Not -m: the package imports the worker, and runpy warns about modules that are imported already.
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
    def death(self) -> str:
        """Empty for an ordinary end, else e.g. ``died of SIGSEGV``."""
        if self.returncode >= 0:
            return ""
        try:
            return f"died of {signal.Signals(-self.returncode).name}"
        except ValueError:
            return f"died of signal {-self.returncode}"


def library_dir() -> Path | None:
    """Directory of the wheel's native libraries, or None without the wheel; nothing is imported or loaded."""
    try:
        spec = importlib.util.find_spec(_PACKAGE)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def missing_reason() -> str | None:
    """Why the compiler cannot run on this machine, in one line; None when it can.

    The wheel exists for Linux x86-64 with glibc 2.35 or newer (its libraries load it at import of the
    provider).
    """
    where = library_dir()
    if where is None:
        return f"no compiler: onnxruntime-qnn is not installed (no wheel for {sys.platform}?)"
    for name in ("libQnnHtp.so", "libHtpPrepare.so", "libQnnSystem.so", "libQnnIr.so"):
        if not (where / name).is_file():
            return f"no compiler: onnxruntime-qnn holds no {name}: the offline HTP compiler exists on Linux x86-64 only"
    run = run_worker("probe", {}, describe=None)
    if run.result.get("ok"):
        return None
    detail = run.result.get("error") or run.death or (run.log.strip().splitlines() or ["no message"])[-1]
    return f"no compiler: the QNN execution provider does not load: {' '.join(str(detail).split())[:300]}"


def versions() -> dict[str, str]:
    """Versions of the tools that decide a binary, as flat report keys; empty text where not installed."""
    return flat_versions(("onnx", "onnxruntime", "onnxruntime-qnn"))


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def run_worker(
    command: str,
    request: Mapping[str, Any],
    *,
    cwd: Path | str | None = None,
    describe: str | None = None,
    min_available_bytes: int = 0,
) -> WorkerRun:
    """Run one command of ``kokoro_npu.compile.worker`` in a child process and wait for it.

    Args:
        command: ``probe``, ``compile``, ``placement``, ``emulate`` or ``inspect``.
        request: the command's arguments, JSON-able.
        cwd: working directory of the child.
        describe: text of the progress line; None shows none.
        min_available_bytes: end the child when the machine's available memory falls below this, before the
            kernel ends some other process.

    Returns:
        How it ended; a crash is told, not raised.
    """
    with tempfile.TemporaryDirectory(prefix="kokoro-qnn-") as scratch:
        request_path, result_path, log_path = (Path(scratch) / n for n in ("request.json", "result.json", "log"))
        request_path.write_text(
            json.dumps({"command": command, "result": str(result_path), **request}), encoding="utf-8"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        start = time.monotonic()
        peak, guarded = 0, False
        with open(log_path, "wb") as log:
            # -P: the child's working directory must not shadow modules.
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _ENTRY, str(request_path)],
                cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            try:
                process = psutil.Process(child.pid)
                # disable=None: no bar where there is no terminal; lines then tell that the build is alive.
                bar = tqdm(desc=describe, bar_format="{desc}: {elapsed}{postfix}", disable=None if describe else True)
                next_line = _LINE_SECONDS
                while child.poll() is None:
                    time.sleep(_POLL_SECONDS)
                    rss = _rss(process)
                    peak = max(peak, rss)
                    elapsed = time.monotonic() - start
                    bar.set_postfix_str(f"{rss / 2**30:.1f} GiB")
                    if describe and bar.disable and elapsed >= next_line:
                        next_line += _LINE_SECONDS
                        print(f"{describe}: {elapsed:.0f} s, {rss / 2**30:.1f} GiB", file=sys.stderr, flush=True)
                    if min_available_bytes and available_bytes() < min_available_bytes:
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


def require_result(run: WorkerRun, what: str) -> dict[str, Any]:
    """The worker's result, or a one-line error that tells how it died.

    Raises:
        KokoroNpuError: the worker crashed or reported an error.
    """
    if run.death or not run.result:
        raise KokoroNpuError(f"{what}: the compiler process {run.death or f'ended with status {run.returncode}'}")
    if not run.result.get("ok"):
        raise KokoroNpuError(f"{what}: {run.result.get('error', 'no message')}")
    return run.result
