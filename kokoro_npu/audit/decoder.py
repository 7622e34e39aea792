"""What a bucket's decoders are made of, and what of it the NPU takes: tables and a report.

Two views stand side by side: a table of the op types that QNN takes, and the placement by Qualcomm's own compiler. The
second is the truth; the first is what the project was asked to check.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from kokoro_npu.audit.ops import NOT_LISTED, GraphAudit, Verdict, audit_graph, op_table, require_npu_ready, verdict
from kokoro_npu.audit.placement import Placement, audit_placement
from kokoro_npu.build import places
from kokoro_npu.build.reports import write_table
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.options import CompileSettings, Target, provider_options
from kokoro_npu.files import atomic


def audit_decoder(
    float_path: Path,
    quantized_path: Path,
    frames: int,
    precision: str,
    target: Target,
    settings: CompileSettings,
    out_dir: Path,
    table_path: Path,
) -> dict[str, Any]:
    """Audit the float decoder (as fp16) and the shipped one of a bucket; write the tables, return the report.

    Args:
        float_path: fp32 ONNX, judged as HTP would run it, in half precision.
        quantized_path: the model that is shipped, of ``precision``.
        frames: the bucket, T.
        precision: ``w8a16``, ``w8a8`` or ``fp16``.
        target: the chip.
        settings: level and options, those of the compile.
        table_path: verdicts by op type, see :func:`~kokoro_npu.audit.ops.op_table`.
        out_dir: receives ``{float,quantized}_ops.csv`` (op kinds) and ``…_placement.csv`` (every node), and
            ``why.txt`` where nothing could be placed.

    Returns:
        A flat report: ``blocking_ops``, ``dynamic_dims``, ``ops_not_listed`` (kinds), ``file_nodes``, ``nodes`` and
        ``nodes_on_npu`` (None when nothing could be placed; counted at partition time, see
        :class:`~kokoro_npu.audit.placement.Placement`), ``refused`` (kinds of the others; nodes and reasons are in the
        table); the same of the float model with the prefix ``fp16_``; and ``placed``, ``reason``, ``backend``,
        ``frames``, ``precision``, ``soc_model``, ``htp_arch``, ``optimization_level``, ``qairt``. Nothing in it depends
        on time or machine.

    Raises:
        KokoroNpuError: a blocking op or a dynamic dimension in either model.
    """
    provider_options(target, settings)  # a typo is told even where nothing can be placed
    table = op_table(table_path)
    models = {"float": ("fp16_", float_path), "quantized": ("", quantized_path)}
    graphs = {kind: audit_graph(path, table) for kind, (_, path) in models.items()}
    for kind, (_, path) in models.items():
        require_npu_ready(graphs[kind], path)
    missing = toolchain.missing_reason()
    if missing:
        with atomic(out_dir / places.WHY) as tmp:
            tmp.write_text(f"Not placed: {missing}\n", encoding="utf-8")
    report: dict[str, Any] = {
        "frames": frames,
        "precision": precision,
        "backend": toolchain.BACKEND,
        "soc_model": target.soc_model,
        "htp_arch": target.htp_arch,
        "optimization_level": settings.optimization_level,
        "placed": missing is None,
        "reason": missing or "",
        "qairt": "",
    }
    for kind, (prefix, path) in models.items():
        graph = graphs[kind]
        placement = None if missing else audit_placement(path, target, settings)
        _write_tables(out_dir / kind, graph, placement, table)
        if placement:
            report["qairt"] = placement.qairt_build
        report |= {
            f"{prefix}blocking_ops": len(graph.blocking),
            f"{prefix}dynamic_dims": len(graph.dynamic),
            f"{prefix}ops_not_listed": sum(verdict(op, table)[0] == NOT_LISTED for op in graph.ops),
            f"{prefix}file_nodes": graph.ops.total(),
            f"{prefix}nodes": len(placement.nodes) if placement else None,
            f"{prefix}nodes_on_npu": placement.on_npu if placement else None,
            f"{prefix}refused": ", ".join(sorted({n.op for n in placement.refused})) if placement else "",
        }
    return report


def _write_tables(stem: Path, graph: GraphAudit, placement: Placement | None, table: Mapping[str, Verdict]) -> None:
    placed = placement.nodes if placement else ()
    handed, taken = Counter(node.op for node in placed), Counter(node.op for node in placed if node.on_npu)
    rows = []
    # After the file's kinds those that ONNX Runtime added before partitioning, such as the layout's Transposes.
    for op in [*sorted(graph.ops), *sorted(handed.keys() - graph.ops.keys())]:
        status, source = verdict(op, table)
        rows.append((op, graph.ops[op], status, handed[op], taken[op], source))
    header = ["op", "nodes_in_file", "listed_status", "nodes_at_partition", "nodes_on_npu", "listed_source"]
    write_table(stem.with_name(f"{stem.name}_ops.csv"), pd.DataFrame(rows, columns=header))
    nodes = [(node.node, node.op, "npu" if node.on_npu else "cpu", node.reason) for node in placed]
    columns = ["node", "op", "placed", "reason"]
    write_table(stem.with_name(f"{stem.name}_placement.csv"), pd.DataFrame(nodes, columns=columns))
