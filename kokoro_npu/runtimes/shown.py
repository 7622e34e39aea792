"""The table of runtimes for a reader: as text cells, for the reviewer's page and as Markdown."""

from typing import Any

import pandas as pd


def cells(table: pd.DataFrame) -> dict[str, list[str]]:
    """Heading to the text of each row: megabytes, and a dash for what a runtime cannot tell.

    Args:
        table: of :func:`kokoro_npu.runtimes.table.collect`, or that table read back from its CSV.
    """

    def column(name: str, unit: float, digits: int) -> list[str]:
        return [_number(value, unit, digits) for value in table[name]]

    return {
        **{name: list(map(str, table[name])) for name in ("runtime", "frames", "precision")},
        "MB": column("bytes", 1e6, 1),
        "SNR dB": column("snr_db_min", 1, 1),
        "waveform corr.": column("waveform_corr_min", 1, 5),
        "magnitude corr.": column("magspec_corr_min", 1, 6),
        "log-mel dB": column("logmel_mae_max", 1, 3),
        "NaN": column("nan_samples", 1, 0),
        "time ÷ ORT": column("time_ratio", 1, 2),
        "peak MB": column("memory_bytes", 1e6, 0),
        "ops accelerated": [
            f"{int(a)} of {int(n)}" if pd.notna(a) and pd.notna(n) else "–"
            for a, n in zip(table["ops_accelerated"], table["ops"], strict=True)
        ],
        "partitions": column("partitions", 1, 0),
    }


def markdown(table: pd.DataFrame) -> str:
    """:func:`cells` as a Markdown table."""
    shown = cells(table)
    lines = [list(shown), ["---"] * len(shown), *map(list, zip(*shown.values(), strict=True))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(value: Any, unit: float, digits: int) -> str:
    return "–" if pd.isna(value) else f"{value / unit:.{digits}f}"
