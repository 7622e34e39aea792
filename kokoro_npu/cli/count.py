"""``kokoro-npu count``: nodes or bytes of a model by operator, type or place."""

from pathlib import Path

import click

from kokoro_npu.cli._tables import console, table
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
    columns = ("Group", "Size (KiB)", "Percentage", "Parameters") if size else ("Group", "Nodes", "Percentage")
    printer.print(table(str(model), columns, *_lines(rows, size, max_rows)))
    sizes = file_sizes(model).items()
    parts = [f"{name} is missing" if found is None else f"{name} {found / _MB:.2f} MB" for name, found in sizes]
    printer.print(f"Files: {', '.join(parts)} (1 MB = 1,000,000 bytes)", markup=False)


def _lines(rows: list[Row], size: bool, most: int) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The table's rows, largest first, and its last line; ``most`` 0 shows all."""
    value, used = ("bytes", "parameters") if size else ("nodes", "nodes")
    rows = sorted((row for row in rows if getattr(row, used)), key=lambda row: (-getattr(row, value), row.group))
    total = sum(getattr(row, value) for row in rows)

    def line(name: str, part: list[Row]) -> tuple[str, ...]:
        held = sum(getattr(row, value) for row in part)
        share = f"{held / total if total else 0:.1%}"
        if size:
            return name, f"{held / _KIB:,.2f}", share, f"{sum(row.parameters for row in part):,}"
        return name, f"{held:,}", share

    most = most or len(rows)
    lines = [line(row.group, [row]) for row in rows[:most]]
    if rest := rows[most:]:
        lines.append(line(f"... and {len(rest)} more", rest))
    return lines, line("Total", rows)
