"""What every compile backend leaves: an empty directory to begin with, one flat report, and why there is no binary."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kokoro_npu.build import places
from kokoro_npu.compile.options import Spec
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic


def prepare(models: Iterable[Path], out_dir: Path) -> None:
    """Make ``out_dir`` new and empty.

    Raises:
        KokoroNpuError: a model is missing.
    """
    for path in models:
        if not path.is_file():
            raise KokoroNpuError(f"{path}: no such model; build it first (dvc repro)")
    if out_dir.exists():
        shutil.rmtree(out_dir)
    out_dir.mkdir(parents=True)


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
        "binary_bytes": 0,
        "seconds": 0.0,
        "peak_rss_bytes": 0,
        "qairt": "",
    }


def say_why(report: dict[str, Any], out_dir: Path) -> None:
    """Write ``why.txt`` where a report has no binary."""
    if not report["compiled"]:
        with atomic(out_dir / places.WHY) as tmp:
            tmp.write_text(f"Not compiled: {report['reason']}\n", encoding="utf-8")
