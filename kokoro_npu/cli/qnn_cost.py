"""``kokoro-npu qnn-cost MODEL.onnx``: what a decoder costs on HTP, as its compiler tells."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from kokoro_npu.compile.binary import model_io
from kokoro_npu.compile.chips import DEFAULT, read_chip
from kokoro_npu.compile.op_cost import MOVEMENT, graph_cost
from kokoro_npu.compile.options import CompileSettings, Spec


def _frames(path: Path) -> int:
    """Frames of a decoder, by its mask's width; 1 for another graph, of which no memory is estimated."""
    shape, _ = model_io(path)[0].get("frame_mask", ((1,), ""))
    return shape[-1]


def _print(cost: dict[str, Any]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    moved = cost["movement_ops"]
    table = Table("QNN op", "count", title=f"{cost['qnn_ops']} QNN ops, {moved} only move data", title_justify="left")
    for kind, number in cost["ops"].items():
        table.add_row(kind + (" *" if kind in MOVEMENT else ""), str(number))
    console.print(table)
    console.print("* only moves data or changes its type")
    console.print(
        f"{cost['gmacs']:.1f} GMAC, weights {cost['weight_bytes']:,} bytes, activations {cost['activation_bytes']:,}"
    )
    sizes = ", ".join(f"{name} {size:,}" for name, size in cost["memory"].items())
    console.print(f"binary {cost['binary_bytes']:,} bytes, VTCM {cost['vtcm_mb']} MB; memory in bytes: {sizes}")
    stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in cost["finalize_seconds"].items())
    console.print(f"compiled in {cost['seconds']} s, {cost['peak_rss_bytes']:,} bytes; seconds: {stages}")


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--precision", default="w8a16", show_default=True, help="As the compile report names it.")
@click.option("--level", type=click.IntRange(1, 3), default=2, show_default=True, help="Finalize level.")
@click.option("--target", default=DEFAULT, show_default=True, help="Chip, a file of conf/target.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def command(model: Path, precision: str, level: int, target: str, as_json: bool) -> None:
    """Compile MODEL (.onnx) and tell what it costs: QNN ops by kind, MACs, memory, the compiler's stages."""
    settings = CompileSettings(optimization_level=level)
    cost = graph_cost(model, _frames(model), Spec(precision, read_chip(target), settings))
    if as_json:
        click.echo(json.dumps(cost, indent=2))
    else:
        _print(cost)
