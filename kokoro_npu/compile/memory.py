"""Does a bucket fit the compiler and this machine? Asked before the compiler starts.

The compiler's memory grows with the frames, and it dies or returns a misleading ``QNN_COMMON_ERROR_MEM_ALLOC`` (1002)
when it does not fit. The estimate stands on measured points (`PEAKS`) and their growth per frame.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from kokoro_npu.compile.options import CompileSettings
from kokoro_npu.geometry import MAX_WIDTH
from kokoro_npu.graphs.reading import read_graph
from kokoro_npu.machine import available_bytes

GB = 10**9
BYTES_PER_FRAME = 9_900_000
"""Growth of the compiler's memory per frame beyond what was measured: w8a16 at level 2, from 552 to 1800 frames."""
FLOOR_BYTES = 1_500_000_000
"""What a compile takes however small the bucket: weights, the libraries, the graph."""
MARGIN = 1.1
"""Factor on the estimate: better to leave out a bucket than to have the kernel end the build."""

LONG_FRAMES = 1000
"""Buckets of more frames take the compiler many minutes, and are compiled on demand alone (``long_buckets``)."""

# With onnxruntime-qnn 2.7.0 on 2 cores, for SM8650. An asterisk marks decoders that needed more than the present one.
PEAKS: Mapping[tuple[str, int], Mapping[int, int]] = {
    ("w8a16", 1): {120: 3_670_000_000, 400: 10 * GB, 552: 11 * GB},  # *
    ("w8a16", 2): {120: 1_900_000_000, 400: 4_050_000_000, 552: 5_230_000_000, 1800: 17_620_000_000},
    ("fp16", 1): {120: 2_160_000_000},  # *
    ("fp16", 2): {120: 2_190_000_000, 400: 2_460_000_000},
}
"""Peak resident memory of measured compiles in bytes: (precision, level) to frames to peak."""


def estimate_bytes(frames: int, precision: str, settings: CompileSettings) -> int:
    """Peak memory of the compiler in bytes, with a margin.

    Interpolated between the points of the same precision and level, and moved by ``BYTES_PER_FRAME`` beyond them. Where
    the level has none, those of the other levels stand in; w8a8 and mixed count as w8a16.
    """
    kind = "fp16" if precision == "fp16" else "w8a16"
    like = {level: points for (precision, level), points in PEAKS.items() if precision == kind}
    own = like.get(settings.optimization_level)
    peaks: dict[int, int] = {}
    for size, peak in sorted(point for points in ([own] if own else like.values()) for point in points.items()):
        peaks[size] = max(peak, *peaks.values(), 0)  # the worst that was seen at this size or a smaller one
    first, last = min(peaks), max(peaks)
    beyond = (min(frames - first, 0) + max(frames - last, 0)) * BYTES_PER_FRAME
    estimate = float(np.interp(frames, list(peaks), list(peaks.values()))) + beyond
    return int(max(estimate, FLOOR_BYTES) * MARGIN)


def widest_tensor(onnx_path: Path) -> tuple[str, int]:
    """Name and width (last dimension) of the widest tensor of rank 3 or more with several channels, inputs apart.

    Single-channel tensors (the audio itself) may be wider than ``MAX_WIDTH``; the compiler folds those. Inputs are
    reshaped first, and wide ones were compiled.
    """
    graph = onnx.shape_inference.infer_shapes(read_graph(onnx_path)).graph
    name, width = "", 0
    for info in (*graph.value_info, *graph.output):
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        if len(dims) >= 3 and dims[1] > 1 and dims[-1] > width:
            name, width = info.name, dims[-1]
    return name, width


def refusal(frames: int, precision: str, settings: CompileSettings, widest: tuple[str, int]) -> str:
    """Why this bucket is not attempted, in one line; empty when it fits.

    The words before the colon go into metrics. The text names no figure that changes from run to run, so that a rebuilt
    report stays the same.

    Args:
        frames: the bucket.
        precision: of its decoder.
        settings: level, and the memory to leave.
        widest: of its decoder, as :func:`widest_tensor` gives it.
    """
    name, width = widest
    need = estimate_bytes(frames, precision, settings)
    memory = (
        f"{frames} frames in {precision} at level {settings.optimization_level} need about "
        f"{need / GB:.1f} GB of compiler memory"
    )
    if width > MAX_WIDTH and settings.optimization_level > 1:
        return (
            f"too wide: tensor {name} is {width} wide; beyond {MAX_WIDTH} HTP's compiler fails above level 1 "
            f"(QNN 1002 or a crash); {memory}"
        )
    if frames > LONG_FRAMES and not settings.long_buckets:
        return (
            f"long: more than {LONG_FRAMES} frames take the compiler many minutes; compile.long_buckets=true or "
            f"`dvc repro pipelines/long/dvc.yaml` compiles them; {memory}"
        )
    if need > available_bytes() - settings.memory_reserve_gib * 2**30:
        reserve = f"a reserve of {settings.memory_reserve_gib:g} GiB"
        return f"too large: {memory}, more than this machine has free beside {reserve}"
    return ""
