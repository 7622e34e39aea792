"""What a decoder costs on HTP, as its compiler tells: ops by kind, memory, and where the finalizing time goes.

One compile with the compiler's own dump of the graph and its profile. Nothing here is a latency.
"""

import csv
import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from kokoro_npu.compile.binary import read_binary
from kokoro_npu.compile.local import compile_decoder
from kokoro_npu.compile.options import Spec
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.cost import count

MOVEMENT = frozenset(
    {
        "Cast", "Concat", "Convert", "Dequantize", "ExpandDims", "Gather", "Pad", "PoolMax2d", "Quantize", "Reshape",
        "Split", "StridedSlice", "Tile", "Transpose",
    }
)  # fmt: skip
"""QNN ops that only move data or change their type; the decoder pools single columns, which moves them."""


def graph_cost(path: Path, frames: int, spec: Spec) -> dict[str, Any]:
    """Compile a decoder once and tell what its graph costs.

    Args:
        path: a decoder with static shapes.
        frames: its bucket, T.
        spec: precision, chip, and settings of this machine's compiler.

    Returns:
        ``qnn_ops`` (how many), ``movement_ops`` (of those, `MOVEMENT`), ``ops`` (kind to count, the most first),
        ``gmacs``, ``weight_bytes`` and ``activation_bytes`` of the ONNX graph, ``memory`` (bytes by use, as
        :class:`kokoro_npu.compile.binary.GraphInfo` has them), ``vtcm_mb``, ``binary_bytes``, ``finalize_seconds``
        (stage to seconds), ``seconds`` and ``peak_rss_bytes`` of the compile.

    Raises:
        KokoroNpuError: the bucket is not compiled.
    """
    with tempfile.TemporaryDirectory(prefix="kokoro-cost-") as scratch:
        dumps, out = Path(scratch, "dumps"), Path(scratch, "out")
        dumps.mkdir()
        profile = dumps / "profile.csv"
        options: dict[str, str | int] = {
            "dump_json_qnn_graph": 1,
            "json_qnn_graph_dir": str(dumps),
            "profiling_level": "detailed",
            "profiling_file_path": str(profile),
        }
        settings = replace(spec.settings, options={**spec.settings.options, **options})
        report = compile_decoder(path, frames, replace(spec, settings=settings), out)
        if not report["compiled"]:
            raise KokoroNpuError(f"{path.name} is not compiled: {report['reason']}")
        ops = _ops(dumps)
        (graph,) = read_binary(next(out.glob("*.bin"))).graphs
        stages = _stages(profile)
    cost = count(path)
    return {
        "frames": frames,
        "precision": spec.precision,
        "target": spec.target.name,
        "optimization_level": settings.optimization_level,
        "qnn_ops": sum(ops.values()),
        "movement_ops": sum(number for kind, number in ops.items() if kind in MOVEMENT),
        "ops": ops,
        "gmacs": cost.gmacs,
        "weight_bytes": cost.weight_bytes,
        "activation_bytes": cost.activation_bytes,
        "memory": dict(graph.memory),
        "vtcm_mb": graph.vtcm_mb,
        "binary_bytes": report["binary_bytes"],
        "finalize_seconds": stages,
        "seconds": report["seconds"],
        "peak_rss_bytes": report["peak_rss_bytes"],
        "qairt": report["qairt"],
    }


def _ops(dumps: Path) -> dict[str, int]:
    """Kinds of the ops that ONNX Runtime handed to QNN, the most first."""
    (graph,) = (path for path in dumps.glob("*.json") if not path.name.endswith("_tensor_log.json"))
    nodes = json.loads(graph.read_text(encoding="utf-8"))["graph"]["nodes"]
    return dict(Counter(node["type"] for node in nodes.values()).most_common())


def _stages(profile: Path) -> dict[str, float]:
    """Seconds of the compiler's stages."""
    with open(profile, newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["Unit of Measurement"] == "US"]
    return {row["Event Identifier"]: round(int(row["Time"]) / 1e6, 3) for row in rows}
