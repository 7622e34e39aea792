"""The flat report of one bucket's compile, the same from every backend."""

from typing import Any

from kokoro_npu.compile import memory, toolchain
from kokoro_npu.compile.options import Spec


def not_compiled(backend: str, frames: int, spec: Spec, reason: str = "") -> dict[str, Any]:
    """The report of :func:`~kokoro_npu.compile.backends.compile_decoder` for a bucket without a binary.

    Args:
        backend: the name that reports give it.
        frames: the bucket.
        spec: what was asked for.
        reason: why there is no binary.
    """
    target, settings = spec.target, spec.settings
    return {
        "backend": backend,
        "compiled": False,
        "reason": reason,
        "frames": frames,
        "precision": spec.precision,
        "target": target.name,
        "soc_model": target.soc_model,
        "htp_arch": target.htp_arch,
        "optimization_level": settings.optimization_level,
        "graph_splitting": settings.graph_splitting,
        "estimated_bytes": memory.estimate_bytes(frames, spec.precision, settings),
        "binary_bytes": 0,
        "graph": "",
        "graphs_in_binary": 0,
        "seconds": 0.0,
        "peak_rss_bytes": 0,
        "qairt": "",
        **toolchain.versions(),
    }
