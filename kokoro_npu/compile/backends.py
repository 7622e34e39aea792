"""The compilers by their config names: the one place that knows both.

What needs this machine's compiler imports :mod:`kokoro_npu.compile.local` itself, so that it does not depend on the
client of AI Hub.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kokoro_npu.compile import aihub, local
from kokoro_npu.compile.options import Spec

BACKENDS: dict[str, Callable[[Path, int, Spec, Path], dict[str, Any]]] = {
    "local": local.compile_decoder,
    "aihub": aihub.compile_decoder,
}


def compile_decoder(onnx_path: Path, frames: int, spec: Spec, out_dir: Path) -> dict[str, Any]:
    """Compile one bucket's decoder for a chip and say what came of it.

    Args:
        onnx_path: decoder with static shapes; QDQ for w8a16 and w8a8, float for fp16.
        frames: the bucket, T.
        spec: precision, chip, and how to compile, the backend's name among it.
        out_dir: emptied first. Holds the ``.bin`` afterwards (``local``: beside its ``<model>_ctx.onnx``; ``aihub``:
            beside a table of the devices), or ``why.txt`` when not compiled.

    Returns:
        A flat report: ``compiled``, ``reason`` (empty when compiled), ``backend``, ``frames``, ``precision``,
        ``target``, ``soc_model``, ``htp_arch``, ``optimization_level``, ``binary_bytes``, ``seconds``,
        ``peak_rss_bytes`` and ``qairt``; ``aihub`` adds ``device``.

    Raises:
        KokoroNpuError: unknown option, missing model, a compile that failed, or a binary that is not the one asked
            for. ``out_dir`` is then empty.
    """
    return BACKENDS[spec.settings.backend](onnx_path, frames, spec, out_dir)
