"""``kokoro-npu estimate-size``: bytes after quantization, from trials and thresholds."""

import math
from pathlib import Path

import click

from kokoro_npu.cli._tables import console, table
from kokoro_npu.sensitivity.estimate import PRECISIONS, Thresholds, estimate_size
from kokoro_npu.sensitivity.table import read_trials

_MB = 1e6


@click.command(short_help="Estimate a model's size after quantization.")
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--trials", required=True, type=click.Path(path_type=Path), help="CSV of trial-quantization.")
@click.option("--quant-threshold", required=True, type=float, help="int8 up to this log-mel distance; -1: none.")
@click.option("--fp16-threshold", default=-1.0, show_default=True, help="Of the rest, fp16 up to this; -1: none.")
@click.option("--min-snr", default=-math.inf, help="int8 only where the trial left at least this SNR in dB.")
@click.option("--exclude", default="", metavar="REGEX", help="Nodes that must not become int8.")
@click.option("--per-tensor", is_flag=True, help="One scale a weight instead of one a channel.")
def command(
    models: tuple[Path, ...],
    trials: Path,
    quant_threshold: float,
    fp16_threshold: float,
    min_snr: float,
    exclude: str,
    per_tensor: bool,
) -> None:
    """Estimate the size of the ONNX files MODELS with each tried node at the width that the thresholds allow."""
    thresholds = Thresholds(quant_threshold, fp16_threshold, min_snr, exclude)
    found = estimate_size(models, read_trials(trials), thresholds, per_channel=not per_tensor)
    rows = [
        (
            precision,
            f"{found.nodes.get(precision, 0):,}",
            f"{found.weights[precision][0] / _MB:,.2f}",
            f"{found.weights[precision][1] / _MB:,.2f}",
        )
        for precision in PRECISIONS
    ]
    total = (
        "Files, graphs included",
        f"{sum(found.nodes.values()):,}",
        f"{found.before / _MB:,.2f}",
        f"{found.after / _MB:,.2f}",
    )
    printer = console()
    printer.print(table("Estimated size", ("Weights", "Tried nodes", "Now (MB)", "Then (MB)"), rows, total))
    printer.print(f"Size reduction: {1 - found.after / found.before:.1%} (1 MB = 1,000,000 bytes)")
