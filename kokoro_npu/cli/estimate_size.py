"""``kokoro-npu estimate-size``: bytes after quantization, from a sensitivity analysis and thresholds."""

import math
from pathlib import Path

import click

from kokoro_npu.cli._tables import console, table
from kokoro_npu.sensitivity.estimate import WIDTHS, SizeThresholds, estimate_size
from kokoro_npu.sensitivity.table import read_sensitivities

_MB = 1e6


@click.command(short_help="Estimate a model's size after quantization.")
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--sensitivity", required=True, type=click.Path(path_type=Path), help="CSV of the stage sensitivity.")
@click.option("--quant-threshold", required=True, type=float, help="int8 up to this log-mel distance; -1: none.")
@click.option("--fp16-threshold", default=-1.0, show_default=True, help="Of the rest, fp16 up to this; -1: none.")
@click.option("--min-snr", default=-math.inf, help="int8 only where the node alone left at least this SNR in dB.")
@click.option("--exclude", default="", metavar="REGEX", help="Nodes that must not become int8.")
def command(
    models: tuple[Path, ...],
    sensitivity: Path,
    quant_threshold: float,
    fp16_threshold: float,
    min_snr: float,
    exclude: str,
) -> None:
    """Estimate the size of the ONNX files MODELS with each analyzed node at the width that the thresholds allow."""
    thresholds = SizeThresholds(quant_threshold, fp16_threshold, min_snr, exclude)
    found = estimate_size(models, read_sensitivities(sensitivity), thresholds)
    rows = [_row(width, found.nodes.get(width, 0), *found.weights[width]) for width in WIDTHS]
    total = _row("Files, graphs included", sum(found.nodes.values()), found.before, found.after)
    printer = console()
    printer.print(table("Estimated size", ("Weights", "Analyzed nodes", "Now (MB)", "Then (MB)"), rows, total))
    printer.print(f"Size reduction: {1 - found.after / found.before:.1%} (1 MB = 1,000,000 bytes)")


def _row(title: str, nodes: int, before: int, after: int) -> tuple[str, str, str, str]:
    return title, f"{nodes:,}", f"{before / _MB:,.2f}", f"{after / _MB:,.2f}"
