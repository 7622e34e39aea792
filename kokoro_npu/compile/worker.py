"""The child process that loads Qualcomm's libraries; ``toolchain.run_worker`` starts it with a request file.

Commands: ``probe`` (does the provider load), ``compile`` (models to one context binary), ``placement`` (which nodes HTP
takes, nothing finalized), ``emulate`` (run models in the emulation of HTP), ``inspect`` (what a binary says of itself).
The answer is written as JSON to the path that the request names.
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kokoro_npu.compile.binary_reader import read_in_process
from kokoro_npu.machine import peak_rss_bytes

_PR_SET_PDEATHSIG = 1
_ADDR_NO_RANDOMIZE = 0x0040000
_PROVIDER = "QNNExecutionProvider"


def _die_with_parent() -> None:
    """Ask the kernel to end this process with its parent: a killed build leaves no compiler behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _fix_addresses() -> None:
    """Start this process again without address randomization, where the kernel allows it.

    The compiler writes heap addresses into a binary (64 words of the one of 120 frames), which would differ each time.
    """
    personality = ctypes.CDLL(None).personality
    current = personality(0xFFFFFFFF)  # which asks only
    if not current & _ADDR_NO_RANDOMIZE and personality(current | _ADDR_NO_RANDOMIZE) != -1:
        os.execv(sys.executable, sys.orig_argv)


def _devices(ort: Any) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == _PROVIDER]


def _return_freed_memory() -> None:
    """Give what one compile has freed back to the system, before the next asks for more."""
    ctypes.CDLL(None).malloc_trim(0)


def _session_options(request: dict[str, Any]) -> Any:
    import onnxruntime as ort
    import onnxruntime_qnn

    ort.disable_telemetry_events()
    devices = _devices(ort)
    if not devices:
        ort.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
        devices = _devices(ort)
    if not devices:
        raise RuntimeError("the QNN execution provider offers no device")
    options = ort.SessionOptions()
    backend = {"backend_path": onnxruntime_qnn.get_qnn_htp_path()}
    options.add_provider_for_devices(devices[:1], backend | request.get("provider_options", {}))
    for name, value in request.get("session_entries", {}).items():
        options.add_session_config_entry(name, value)
    options.log_severity_level = request.get("log_severity", 3)
    return options


def _probe(request: dict[str, Any]) -> dict[str, Any]:
    _session_options(request)
    return {}


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    """Models one after the other; several share their weights in one binary, which the last one closes."""
    import onnxruntime as ort

    models = request["models"]
    measured = []
    for number, each in enumerate(models, start=1):
        print(f"begin {each['frames']}", flush=True)  # of a crash, the parent knows nothing else
        start = time.monotonic()
        entries = request["session_entries"] | {"ep.context_file_path": each["context"]}
        if len(models) > 1:
            entries["ep.share_ep_contexts"] = "1"
            if number == len(models):
                entries["ep.stop_share_ep_contexts"] = "1"
        options = _session_options(request | {"session_entries": entries})
        # enable_fallback=0, or ONNX Runtime retries on the CPU and the true error is lost.
        ort.InferenceSession(each["model"], options, enable_fallback=0)
        measured.append({"seconds": round(time.monotonic() - start, 1), "peak_rss_bytes": peak_rss_bytes()})
        _return_freed_memory()
    return {"measured": measured}


def _placement(request: dict[str, Any]) -> dict[str, Any]:
    import onnxruntime as ort

    session = ort.InferenceSession(request["model"], _session_options(request), enable_fallback=0)
    nodes = [
        [node.name, node.op_type, subgraph.ep_name]
        for subgraph in session.get_provider_graph_assignment_info()
        for node in subgraph.get_nodes()
    ]
    return {"nodes": nodes}


def _emulate(request: dict[str, Any]) -> dict[str, Any]:
    """Each job's outputs, or its error, as files: a crash at one job leaves those before it."""
    import numpy as np
    import onnxruntime as ort

    for job in request["jobs"]:
        outputs = Path(job["outputs"])
        try:
            session = ort.InferenceSession(job["model"], _session_options(request), enable_fallback=0)
            with np.load(job["feeds"]) as feeds:
                values = session.run(None, dict(feeds))
            # Freed before the next session is made: two decoders at once would need the memory of both.
            names = [output.name for output in session.get_outputs()]
            del session
            part = outputs.with_suffix(".part")
            with open(part, "wb") as stream:
                np.savez(stream, **dict(zip(names, values, strict=True)))
            os.replace(part, outputs)
        except Exception as error:  # this job's answer; the others go on
            outputs.with_suffix(".error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    return {}


def _inspect(request: dict[str, Any]) -> dict[str, Any]:
    return {"binary": read_in_process(Path(request["path"]), Path(request["libraries"]))}


_COMMANDS = {
    "probe": _probe, "compile": _compile, "placement": _placement, "emulate": _emulate, "inspect": _inspect,
}  # fmt: skip


def main(request_path: str) -> int:
    """Run the request; exit 0 and ``ok: true``, or 1 and a one-line error in the answer."""
    _die_with_parent()
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    if request["command"] == "compile":
        _fix_addresses()
    try:
        answer = {"ok": True} | _COMMANDS[request["command"]](request)
    except Exception as error:  # the boundary to the parent: any failure becomes its message
        answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    answer["peak_rss_bytes"] = peak_rss_bytes()
    target = Path(request["result"])
    part = target.with_suffix(".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(part, target)
    return 0 if answer["ok"] else 1
