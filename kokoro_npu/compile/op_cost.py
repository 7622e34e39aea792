"""What a decoder costs on HTP, as its compiler tells: ops by kind, memory, and where the finalizing time goes.

One compile with the compiler's own dump of the graph and its profile. Nothing here is a latency.
"""

import csv
import json
import tempfile
from collections import Counter
from dataclasses import asdict, replace
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
        The compile report, and ``qnn_ops`` (how many), ``movement_ops`` (of those, `MOVEMENT`), ``ops`` (kind to count,
        the most first), the counts of the ONNX graph (:class:`kokoro_npu.graphs.cost.Cost`), ``memory`` (bytes by use,
        as :class:`kokoro_npu.compile.binary.GraphInfo` has them), ``vtcm_mb``, ``finalize_seconds`` (stage to seconds).

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
    return {
        **report,
        **asdict(count(path)),
        "qnn_ops": sum(ops.values()),
        "movement_ops": sum(number for kind, number in ops.items() if kind in MOVEMENT),
        "ops": ops,
        "memory": graph.memory,
        "vtcm_mb": graph.vtcm_mb,
        "finalize_seconds": stages,
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
