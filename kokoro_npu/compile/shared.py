"""The decoders of all buckets as one HTP context binary: what the SDK bundle ships, and what each further chip gets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kokoro_npu.build import places
from kokoro_npu.compile import local
from kokoro_npu.compile.options import Spec
from kokoro_npu.compile.report import not_compiled, prepare, say_why
from kokoro_npu.files import write_json

BINARY = "kokoro_decoder_qnn.bin"
"""The graphs of all buckets, and the weights that these share."""


def compile_shared(models: Mapping[int, Path], spec: Spec, out_dir: Path) -> dict[str, Any]:
    """Compile the decoders of all buckets for a chip into one binary, with one copy of their weights.

    Only this machine's compiler puts several buckets into one binary: for ``compile.backend=aihub`` none is compiled.

    Args:
        models: frames to the bucket's decoder.
        spec: precision, chip, and how to compile.
        out_dir: emptied first. Holds the binary afterwards and, beside it, ``<model>_ctx.onnx`` of each bucket, which
            point into it, and in a directory of each bucket's frames ``bucket.json``, which names them and the
            bucket's graph, or ``why.txt``.

    Returns:
        A flat report: ``backend``, ``precision``, ``target``, ``chip``, ``soc_model``, ``htp_arch``,
        ``optimization_level``, ``qairt``; ``buckets`` (how many were asked for), ``compiled_buckets``, ``frames`` (of
        those), ``binary_bytes``, ``seconds`` of all and ``peak_rss_bytes``.

    Raises:
        KokoroNpuError: as :func:`kokoro_npu.compile.backends.compile_decoder`; the message names the bucket.
    """
    prepare(models.values(), out_dir)
    backend, target = spec.settings.backend, spec.target
    if backend == "local":
        reports = local.compile_decoders(models, spec, out_dir, BINARY)
    else:
        reason = "AI Hub compiles each bucket alone"
        reports = {frames: not_compiled(backend, frames, spec, reason) for frames in models}
    for frames, report in reports.items():
        say_why(report, out_dir / str(frames))
        if report["compiled"]:
            # Not in the report, whose times differ: the same after every compile of the same models.
            context = places.context_model(out_dir, models[frames]).name
            names = {"binary": BINARY, "context": context, "graph": report["graph"]}
            write_json(out_dir / str(frames) / places.BUCKET_NAMES, names)
    compiled = [report for report in reports.values() if report["compiled"]]
    return {
        "precision": spec.precision,
        "target": target.name,
        "chip": target.chip,
        "soc_model": target.soc_model,
        "htp_arch": target.htp_arch,
        "optimization_level": spec.settings.optimization_level,
        "backend": next(iter(reports.values()))["backend"],
        "qairt": max(report["qairt"] for report in reports.values()),
        "buckets": len(models),
        "compiled_buckets": len(compiled),
        "frames": [report["frames"] for report in compiled],
        "binary_bytes": max(report["binary_bytes"] for report in reports.values()),
        "seconds": round(sum(report["seconds"] for report in compiled), 1),
        "peak_rss_bytes": max(report["peak_rss_bytes"] for report in reports.values()),
    }
