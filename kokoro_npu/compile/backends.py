"""From a static decoder to an HTP context binary.

A backend takes an ONNX decoder and leaves a context binary in a directory. ``local`` runs Qualcomm's offline compiler
here, ``aihub`` the one of Qualcomm AI Hub; each stands in :data:`BACKENDS` under its config name.
"""

import difflib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from kokoro_npu.compile.aihub import AiHubBackend
from kokoro_npu.compile.local import SHARED_BINARY, LocalBackend
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic, write_json

__all__ = ["BACKENDS", "Backend", "CompileSettings", "Spec", "Target", "compile_decoder", "compile_decoders"]


class Backend(Protocol):
    """A place where a decoder can be compiled."""

    def compile(self, onnx_path: Path, frames: int, spec: Spec, out_dir: Path) -> dict[str, Any]:
        """Compile into the existing, empty ``out_dir`` and return the report of :func:`compile_decoder`.

        A bucket that this place cannot compile is reported as ``compiled: false`` with its ``reason``; a
        compile that was tried and failed raises ``KokoroNpuError``.
        """
        ...

    def compile_shared(self, models: Mapping[int, Path], spec: Spec, out_dir: Path) -> dict[int, dict[str, Any]]:
        """Compile all buckets into one binary; arguments and reports as of :func:`compile_decoders`.

        A place that cannot put several buckets into one reports each as not compiled.
        """
        ...


BACKENDS: dict[str, type[Backend]] = {"local": LocalBackend, "aihub": AiHubBackend}


def compile_decoder(onnx_path: Path | str, frames: int, spec: Spec, out_dir: Path | str) -> dict[str, Any]:
    """Compile one bucket's decoder for a chip and say what came of it.

    Args:
        onnx_path: decoder with static shapes; QDQ for w8a16 and w8a8, float for fp16.
        frames: the bucket, T.
        spec: precision, chip, and how to compile.
        out_dir: emptied first. Holds the ``.bin`` afterwards (``local``: beside its ``<model>_ctx.onnx``; ``aihub``:
            beside a table of the devices), or ``why.txt`` when not compiled.

    Returns:
        A flat report: ``compiled``, ``reason`` (empty when compiled), ``backend``, ``frames``, ``precision``,
        ``soc_model``, ``htp_arch``, ``optimization_level``, ``graph_splitting``, ``estimated_bytes``,
        ``binary_bytes``, ``seconds``, ``peak_rss_bytes``, ``qairt`` and tool versions; ``aihub`` adds ``device``.

    Raises:
        KokoroNpuError: unknown backend or option, missing model, a compile that failed, or a binary that is
            not the one asked for. ``out_dir`` is then empty.
    """
    onnx_path, out_dir = Path(onnx_path), Path(out_dir)
    backend = _backend(spec.settings)
    _prepare([onnx_path], out_dir)
    report = backend.compile(onnx_path, frames, spec, out_dir)
    if not report["compiled"]:
        _say_why(report, out_dir)
    return report


def compile_decoders(models: Mapping[int, Path], spec: Spec, out_dir: Path | str) -> dict[int, dict[str, Any]]:
    """Compile the decoders of all buckets for a chip into one binary, with one copy of their weights.

    Args:
        models: frames to the bucket's decoder.
        spec: see :func:`compile_decoder`.
        out_dir: emptied first. Holds the binary afterwards and, beside it, ``<model>_ctx.onnx`` of each bucket, which
            point into it, and in a directory of each bucket's frames ``bucket.json``, which names them, or ``why.txt``.

    Returns:
        Frames to the report of :func:`compile_decoder`, in which ``binary_bytes`` is the size of the shared binary;
        ``graph`` is the bucket's in there, ``graphs_in_binary`` counts all.

    Raises:
        KokoroNpuError: as :func:`compile_decoder`; the message names the bucket.
    """
    out_dir = Path(out_dir)
    backend = _backend(spec.settings)
    _prepare(models.values(), out_dir)
    reports = backend.compile_shared(models, spec, out_dir)
    for frames, report in reports.items():
        _describe(report, models[frames], out_dir / str(frames))
    return reports


def _say_why(report: dict[str, Any], out_dir: Path) -> None:
    with atomic(out_dir / "why.txt") as tmp:
        tmp.write_text(f"Not compiled: {report['reason']}\n", encoding="utf-8")


def _describe(report: dict[str, Any], onnx_path: Path, out_dir: Path) -> None:
    """What a bucket is called in the shared binary: the same after every compile of the same models."""
    if report["compiled"]:
        names = {"binary": SHARED_BINARY, "context": f"{onnx_path.stem}_ctx.onnx", "graph": report["graph"]}
        write_json(out_dir / "bucket.json", names)
    else:
        _say_why(report, out_dir)


def _backend(settings: CompileSettings) -> Backend:
    if settings.backend not in BACKENDS:
        close = difflib.get_close_matches(settings.backend, BACKENDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(sorted(BACKENDS))}"
        raise KokoroNpuError(f"compile.backend: unknown backend {settings.backend!r}; {hint}")
    return BACKENDS[settings.backend]()


def _prepare(models: Iterable[Path], out_dir: Path) -> None:
    """An empty ``out_dir``; no model, no compile."""
    for path in models:
        if not path.is_file():
            raise KokoroNpuError(f"{path}: no such model; build it first (dvc repro)")
    if out_dir.exists():
        shutil.rmtree(out_dir)
    out_dir.mkdir(parents=True)
