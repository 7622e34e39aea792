"""ONNX Runtime on the CPU, set up the same way everywhere."""

from pathlib import Path

import onnxruntime as ort

THREADS = 2
"""Threads of every measured session. Fixed, because sums over more threads round differently and committed figures
must not depend on the machine's cores."""


def cpu_session(model: Path | str | bytes, threads: int = THREADS) -> ort.InferenceSession:
    """A session on the CPU provider, without the telemetry that onnxruntime 1.31 sends by default.

    Args:
        model: a file, or the bytes of a model that holds its weights.
        threads: of one operator.
    """
    ort.disable_telemetry_events()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # warnings about our graphs' unused initializers help nobody
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
