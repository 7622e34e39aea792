"""``kokoro-npu inspect FILE.bin``: what an HTP context binary says of itself."""

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kokoro_npu.compile import toolchain
from kokoro_npu.compile.binary import BinaryInfo, GraphInfo, read_binary
from kokoro_npu.errors import KokoroNpuError


def _graph_table(graph: GraphInfo) -> Table:
    title = f"graph {graph.name}: level {graph.optimization_level}, VTCM {graph.vtcm_mb} MB"
    table = Table("", "tensor", "shape", "dtype", title=title, title_justify="left")
    for kind, tensors in (("in", graph.inputs), ("out", graph.outputs)):
        for name, (shape, dtype) in tensors.items():
            table.add_row(kind, name, " x ".join(map(str, shape)), dtype)
    return table


def _print(info: BinaryInfo, path: Path) -> None:
    console = Console(soft_wrap=True)
    console.print(
        f"{path.name}: {path.stat().st_size:,} bytes, soc_model {info.soc_model}, htp_arch {info.htp_arch}, "
        f"QAIRT {info.qairt_build}, {len(info.graphs)} graph{'s' * (len(info.graphs) != 1)}",
        highlight=False,
    )
    for graph in info.graphs:
        console.print(_graph_table(graph))
        sizes = ", ".join(f"{name} {size:,}" for name, size in graph.memory.items())
        console.print(f"memory in bytes: {sizes}", highlight=False)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def command(file: Path, as_json: bool) -> None:
    """What an HTP context binary is: chip, build, graphs, inputs and outputs, memory.

    FILE is a .bin of this project's compile stage, of AI Hub, or of any QAIRT build. The reader is Qualcomm's own
    (libQnnSystem.so of onnxruntime-qnn), in a process of its own: a damaged file costs one line.
    """
    if toolchain.library_dir() is None:
        raise KokoroNpuError(
            "inspect needs onnxruntime-qnn, whose libQnnSystem.so reads the binary; it is not installed"
        )
    info = read_binary(file)
    if as_json:
        click.echo(json.dumps(asdict(info), indent=2))
    else:
        _print(info, file)
