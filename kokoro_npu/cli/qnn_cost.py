"""``kokoro-npu qnn-cost MODEL.onnx``: what a decoder costs on HTP, as its compiler tells."""

import json
from pathlib import Path

import click

from kokoro_npu.compile.binary import model_io
from kokoro_npu.compile.chips import DEFAULT, read_chip
from kokoro_npu.compile.op_cost import graph_cost
from kokoro_npu.compile.options import CompileSettings, Spec


def _frames(path: Path) -> int:
    """Frames of a decoder, by its mask's width; 1 for another graph, of which no memory is estimated."""
    shape, _ = model_io(path)[0].get("frame_mask", ((1,), ""))
    return shape[-1]


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--precision", default="w8a16", show_default=True, help="As the compile report names it.")
@click.option("--level", type=click.IntRange(1, 3), default=2, show_default=True, help="Finalize level.")
@click.option("--target", default=DEFAULT, show_default=True, help="Chip, a file of conf/target.")
def command(model: Path, precision: str, level: int, target: str) -> None:
    """Compile MODEL (.onnx) and tell what it costs, as JSON: QNN ops by kind, MACs, memory, the compiler's stages."""
    settings = CompileSettings(optimization_level=level)
    cost = graph_cost(model, _frames(model), Spec(precision, read_chip(target), settings))
    click.echo(json.dumps(cost, indent=2))
