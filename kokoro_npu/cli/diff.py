"""``kokoro-npu diff``: what one model has that another has not."""

from pathlib import Path

import click

from kokoro_npu.cli._tables import console, table
from kokoro_npu.graphs.counting import GROUPINGS, OP, difference

_MB = 1e6


@click.command(short_help="Operations added and removed between two models.")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--by", metavar="|".join(GROUPINGS), default=OP, show_default=True, help="What a group is.")
@click.option("--depth", type=click.IntRange(min=1), default=2, show_default=True, help="Scopes of a name, by=name.")
def command(before: Path, after: Path, by: str, depth: int) -> None:
    """Compare the ONNX files BEFORE and AFTER: operations added and removed, weights, inputs and outputs."""
    found = difference(before, after, by, depth)
    printer = console()
    for title, changes in (("Added", found.added), ("Removed", found.removed)):
        rows = [(group, f"{nodes:,}") for group, nodes in changes.items()]
        printer.print(table(title, (by, "Nodes"), rows, ("Total", f"{sum(changes.values()):,}")))
    totals = [
        (name, *(f"{value / scale:{form}}" for value in pair), f"{(pair[1] - pair[0]) / scale:+{form}}")
        for name, pair, scale, form in (
            ("Nodes", found.nodes, 1, ",.0f"),
            ("Parameters", found.parameters, 1, ",.0f"),
            ("Stored tensors (MB)", found.bytes, _MB, ",.2f"),
        )
    ]
    printer.print(table("Totals", ("", "Before", "After", "Difference"), totals))
    for line in found.interface or ["Inputs and outputs are the same."]:
        printer.print(line, markup=False)
