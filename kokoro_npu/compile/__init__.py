"""From a static decoder to an HTP context binary.

A backend takes an ONNX decoder and leaves a context binary in a directory. ``local`` runs Qualcomm's offline compiler
here, ``aihub`` the one of Qualcomm AI Hub; each stands in :data:`BACKENDS` under its config name.
"""

import difflib
import shutil
from pathlib import Path
from typing import Any, Protocol

from kokoro_npu.compile.aihub import AiHubBackend
from kokoro_npu.compile.local import LocalBackend
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic

__all__ = ["BACKENDS", "Backend", "CompileSettings", "Target", "compile_decoder"]


class Backend(Protocol):
    """A place where a decoder can be compiled."""

    def compile(
        self,
        onnx_path: Path,
        frames: int,
        precision: str,
        target: Target,
        settings: CompileSettings,
        out_dir: Path,
    ) -> dict[str, Any]:
        """Compile into the existing, empty ``out_dir`` and return the report of :func:`compile_decoder`.

        A bucket that this place cannot compile is reported as ``compiled: false`` with its ``reason``; a
        compile that was tried and failed raises ``KokoroNpuError``.
        """
        ...


BACKENDS: dict[str, type[Backend]] = {"local": LocalBackend, "aihub": AiHubBackend}


def compile_decoder(
    onnx_path: Path | str,
    frames: int,
    precision: str,
    target: Target,
    settings: CompileSettings,
    out_dir: Path | str,
) -> dict[str, Any]:
    """Compile one bucket's decoder for the target and say what came of it.

    Args:
        onnx_path: decoder with static shapes; QDQ for w8a16 and w8a8, float for fp16.
        frames: the bucket, T.
        precision: ``w8a16``, ``w8a8`` or ``fp16``.
        target: the chip.
        settings: backend, level and options.
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
    if settings.backend not in BACKENDS:
        close = difflib.get_close_matches(settings.backend, BACKENDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(sorted(BACKENDS))}"
        raise KokoroNpuError(f"compile.backend: unknown backend {settings.backend!r}; {hint}")
    if not onnx_path.is_file():
        raise KokoroNpuError(f"{onnx_path}: no such model; build it first (dvc repro)")
    if out_dir.exists():
        shutil.rmtree(out_dir)
    out_dir.mkdir(parents=True)
    report = BACKENDS[settings.backend]().compile(onnx_path, frames, precision, target, settings, out_dir)
    if not report["compiled"]:
        with atomic(out_dir / "why.txt") as tmp:
            tmp.write_text(f"Not compiled: {report['reason']}\n", encoding="utf-8")
    return report
