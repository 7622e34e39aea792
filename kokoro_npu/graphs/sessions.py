"""ONNX Runtime on the CPU, set up the same way everywhere."""

from pathlib import Path

import onnxruntime as ort

from kokoro_npu.machine import THREADS


def cpu_session(
    model: Path | str | bytes, threads: int = THREADS, options: ort.SessionOptions | None = None
) -> ort.InferenceSession:
    """A session on the CPU provider, without the telemetry that onnxruntime 1.31 sends by default.

    Args:
        model: a file, or the bytes of a model that holds its weights.
        threads: of one operator.
        options: whatever else differs from ONNX Runtime's defaults.
    """
    ort.disable_telemetry_events()
    options = options or ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # warnings about our graphs' unused initializers help nobody
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
