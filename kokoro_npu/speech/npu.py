"""Decoders on Qualcomm's NPU: context binaries through ONNX Runtime's QNN provider.

On a Snapdragon they run on the NPU; elsewhere (x86-64 Linux) the provider's library emulates it, with the NPU's
arithmetic, and far too slowly to speak with.
"""

import platform
from functools import cache
from pathlib import Path

import onnxruntime as ort

from kokoro_npu.build import places
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.sessions import cpu_session

_PROVIDER = "QNNExecutionProvider"


def decoder_session(path: Path, threads: int) -> ort.InferenceSession:
    """A context model on the NPU, any other decoder on the CPU.

    Raises:
        KokoroNpuError: the QNN provider is not installed, or refuses the binary.
    """
    if not places.is_context_model(path):
        return cpu_session(path, threads)
    ort.disable_telemetry_events()
    options = ort.SessionOptions()
    device, libraries = _device()
    options.add_provider_for_devices([device], libraries)
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.log_severity_level = 3
    try:
        # enable_fallback=0, or ONNX Runtime retries on the CPU and the true error is lost.
        return ort.InferenceSession(str(path), options, enable_fallback=0)
    except Exception as error:  # ONNX Runtime raises bare RuntimeErrors of its own making
        raise KokoroNpuError(f"{path}: the QNN provider cannot load it: {error}") from error


def is_emulated() -> bool:
    """Whether this machine's QNN library emulates the NPU."""
    return platform.machine().lower() not in ("arm64", "aarch64")


@cache
def _device() -> tuple[ort.OrtEpDevice, dict[str, str]]:
    """The provider's device and its library, registered once a process."""
    try:
        import onnxruntime_qnn
    except ImportError as error:
        raise KokoroNpuError(
            "the NPU needs the package onnxruntime-qnn (pip install -c constraints.txt -e '.[qnn]')"
        ) from error
    ort.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == _PROVIDER]
    if not devices:
        raise KokoroNpuError("the QNN provider finds no device on this machine")
    return devices[0], {"backend_path": onnxruntime_qnn.get_qnn_htp_path()}
