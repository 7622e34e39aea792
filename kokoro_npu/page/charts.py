"""Bar charts as SVG with the same bytes each time, which take their colours from the page around them."""

import io
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

# Colours that nothing else in a chart has, and what the page calls them; the second is for a chart on its own.
_COLOURS = {
    "#010203": ("--ink", "#1f2430"),
    "#010204": ("--faint", "#8a92a3"),
    "#010205": ("--series-1", "#2563c9"),
    "#010206": ("--series-2", "#c2570c"),
    "#010207": ("--series-3", "#3f7a30"),
    "#010208": ("--gate", "#b3261e"),
}
_INK, _FAINT, *SERIES, _GATE = _COLOURS
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
_WIDTH_INCHES = 4.4  # about the width of a phone: the letters stay readable there
_BAR_INCHES = 0.21


def bars(
    name: str,
    rows: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
    gates: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """One group of horizontal bars a row, one bar a series.

    Args:
        name: of the chart; makes the ids in it unlike those of another chart.
        rows: label of each group, top to bottom.
        series: label to one value a row; None draws no bar and says so.
        unit: label of the value axis.
        gates: series label to a bound, drawn as a line across its bars.

    Returns:
        An ``<svg>`` element, text kept as text.
    """
    height = _BAR_INCHES * len(rows) * (len(series) + 0.8) + 0.75
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        axes = figure.add_subplot()
        largest = max((v for values in series.values() for v in values if v is not None), default=1.0) or 1.0
        for place, (label, values) in enumerate(series.items()):
            positions = [row + (place - (len(series) - 1) / 2) / (len(series) + 0.8) for row in range(len(rows))]
            thickness = 0.9 / (len(series) + 0.8)
            axes.barh(positions, [v or 0 for v in values], thickness, color=SERIES[place % 3], label=label)
            for position, value in zip(positions, values, strict=True):
                shown = "none" if value is None else f"{value:.3g}"
                axes.text((value or 0) + largest * 0.012, position, shown, va="center", fontsize=8)
            if label in gates:
                low, high = ([position + side * thickness / 2 for position in positions] for side in (-1, 1))
                axes.vlines([gates[label]] * len(rows), low, high, color=_GATE, lw=2)
        axes.set_yticks(range(len(rows)), rows)
        axes.invert_yaxis()
        axes.set_xlim(0, largest * 1.16)
        axes.set_xlabel(unit)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
        if len(series) > 1:
            figure.legend(loc="outside upper left", ncols=len(series), frameon=False, handlelength=1, columnspacing=1)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _finished(name, stream.getvalue())


def _finished(name: str, svg: str) -> str:
    """Without prologue and fixed size, ids made unique, colours by the page's names."""
    svg = svg[svg.index("<svg") :].strip()
    for colour, (variable, alone) in _COLOURS.items():
        svg = svg.replace(colour, f"var({variable}, {alone})")
    for attribute in ('id="', 'href="#', "url(#"):
        svg = svg.replace(attribute, f"{attribute}{name}-")
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
