"""Tables that commands print: one look, and no line cut where the output is no terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

_PIPE_WIDTH = 200
"""Of a file or pipe, where rich would otherwise fold at 80 columns."""


def console() -> Console:
    """The standard output."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], total: Sequence[str] | None = None
) -> Table:
    """A table whose first column is text and whose others are numbers, with an optional last line."""
    built = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_footer=total is not None)
    for index, column in enumerate(columns):
        footer = total[index] if total else ""
        built.add_column(column, footer=footer, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        built.add_row(*row)
    return built
