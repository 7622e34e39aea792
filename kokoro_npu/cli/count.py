"""``kokoro-npu count``: nodes or bytes of a model by operator, type or place."""

from pathlib import Path

import click

from kokoro_npu.cli._tables import bounded, console, table
from kokoro_npu.graphs.counting import GROUPINGS, OP, Row, count, file_sizes

_KIB = 1024
_MB = 1e6


@click.command(short_help="Count a model's nodes or bytes.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--by", "by", metavar="|".join(GROUPINGS), default=OP, show_default=True, help="What a group is.")
@click.option("--size", is_flag=True, help="Count bytes and parameters of the stored tensors, largest first.")
@click.option("--depth", type=click.IntRange(min=1), default=2, show_default=True, help="Scopes of a name, by=name.")
@click.option("--prefix", default="", help="Only nodes whose name begins with this.")
@click.option("--max-rows", type=click.IntRange(min=0), default=0, help="At most so many rows; 0: all.")
def command(model: Path, by: str, size: bool, depth: int, prefix: str, max_rows: int) -> None:
    """Count the nodes of the ONNX file MODEL, or with --size the bytes of its weights.

    Weights in other files are counted as well. A weight belongs to the node that computes with it, whatever dequantizes
    it on the way.
    """
    rows = count(model, by, depth, prefix)
    printer = console()
    printer.print(_sizes(rows, max_rows, str(model)) if size else _nodes(rows, max_rows, str(model)))
    sizes = file_sizes(model).items()
    parts = [f"{name} is missing" if found is None else f"{name} {found / _MB:.2f} MB" for name, found in sizes]
    printer.print(f"Files: {', '.join(parts)} (1 MB = 1,000,000 bytes)", markup=False)


def _nodes(rows: list[Row], most: int, title: str) -> object:
    rows = sorted((row for row in rows if row.nodes), key=lambda row: (-row.nodes, row.group))
    total = sum(row.nodes for row in rows)
    lines = [(row.group, f"{row.nodes:,}", f"{row.nodes / total:.1%}") for row in rows]
    hidden = sum(row.nodes for row in rows[most:])
    shown = bounded(lines, most, (f"... and {len(rows) - most} more", f"{hidden:,}", f"{hidden / total:.1%}"))
    return table(title, ("Group", "Nodes", "Percentage"), shown, ("Total", f"{total:,}", "100%"))


def _sizes(rows: list[Row], most: int, title: str) -> object:
    rows = sorted((row for row in rows if row.parameters), key=lambda row: (-row.bytes, row.group))
    total = sum(row.bytes for row in rows)

    def line(name: str, part: list[Row]) -> tuple[str, str, str, str]:
        stored = sum(row.bytes for row in part)
        share = stored / total if total else 0.0
        return name, f"{stored / _KIB:,.2f}", f"{share:.1%}", f"{sum(row.parameters for row in part):,}"

    lines = [line(row.group, [row]) for row in rows]
    shown = bounded(lines, most, line(f"... and {len(rows) - most} more", rows[most:]))
    return table(title, ("Group", "Size (KiB)", "Percentage", "Parameters"), shown, line("Total", rows))
