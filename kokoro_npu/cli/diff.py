"""``kokoro-npu diff``: what one model has that another has not."""

from collections import Counter
from pathlib import Path

import click

from kokoro_npu.cli._tables import console, table
from kokoro_npu.graphs.counting import GROUPINGS, OP, count

_MB = 1e6


@click.command(short_help="Operations added and removed between two models.")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--by", metavar="|".join(GROUPINGS), default=OP, show_default=True, help="What a group is.")
@click.option("--depth", type=click.IntRange(min=1), default=2, show_default=True, help="Scopes of a name, by=name.")
def command(before: Path, after: Path, by: str, depth: int) -> None:
    """Compare the ONNX files BEFORE and AFTER: operations added and removed, and their weights."""
    sides = [count(path, by, depth) for path in (before, after)]
    old, new = (Counter({row.group: row.nodes for row in side}) for side in sides)
    printer = console()
    for title, changes in (("Added", new - old), ("Removed", old - new)):
        rows = [(group, f"{nodes:,}") for group, nodes in sorted(changes.items())]
        printer.print(table(title, (by, "Nodes"), rows, ("Total", f"{changes.total():,}")))
    totals = []
    for name, field, scale, form in (
        ("Nodes", "nodes", 1, ",.0f"),
        ("Parameters", "parameters", 1, ",.0f"),
        ("Stored tensors (MB)", "bytes", _MB, ",.2f"),
    ):
        first, second = (sum(getattr(row, field) for row in side) / scale for side in sides)
        totals.append((name, f"{first:{form}}", f"{second:{form}}", f"{second - first:+{form}}"))
    printer.print(table("Totals", ("", "Before", "After", "Difference"), totals))
