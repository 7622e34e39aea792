"""The decoders of all buckets as one HTP context binary: what the SDK bundle ships, and what each further chip gets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kokoro_npu.compile.backends import compile_decoders
from kokoro_npu.compile.options import Spec

_COMPILER = ("backend", "qairt", "onnxruntime_qnn")


def compile_shared(models: Mapping[int, Path], spec: Spec, out_dir: Path | str) -> dict[str, Any]:
    """Compile all buckets into ``out_dir`` as :func:`~kokoro_npu.compile.backends.compile_decoders` does; one report.

    Args:
        models: frames to the bucket's decoder.
        spec: precision, chip, and how to compile. Only the backend ``local`` puts several buckets into one binary.
        out_dir: emptied first.

    Returns:
        A flat report: ``backend``, ``precision``, ``target``, ``chip``, ``soc_model``, ``htp_arch``,
        ``optimization_level``, ``qairt``, ``onnxruntime_qnn``; ``buckets`` (how many were asked for),
        ``compiled_buckets``, ``frames`` (of those), ``graphs``, ``binary_bytes``, ``seconds`` of all and
        ``peak_rss_bytes``. Why a bucket is not in the binary stands in ``<out_dir>/<frames>/why.txt``.

    Raises:
        KokoroNpuError: as :func:`kokoro_npu.compile.backends.compile_decoder`; the message names the bucket.
    """
    reports = compile_decoders(models, spec, out_dir)
    compiled = [report for report in reports.values() if report["compiled"]]
    compiler = next(iter([*compiled, *reports.values()]))
    target = spec.target
    return {
        "precision": spec.precision,
        "target": target.name,
        "chip": target.chip,
        "soc_model": target.soc_model,
        "htp_arch": target.htp_arch,
        "optimization_level": spec.settings.optimization_level,
        **{key: compiler.get(key, "") for key in _COMPILER},
        "buckets": len(models),
        "compiled_buckets": len(compiled),
        "frames": [report["frames"] for report in compiled],
        "graphs": max((report["graphs_in_binary"] for report in compiled), default=0),
        "binary_bytes": max((report["binary_bytes"] for report in compiled), default=0),
        "seconds": round(sum(report["seconds"] for report in compiled), 1),
        "peak_rss_bytes": max((report["peak_rss_bytes"] for report in compiled), default=0),
    }
