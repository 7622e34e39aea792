"""The table of a sensitivity analysis: its row and its reader."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from kokoro_npu.errors import KokoroNpuError


@dataclass(frozen=True)
class Sensitivity:
    """What quantizing one part alone did.

    Attributes:
        name: of the node; unique over all models that are analyzed.
        op_type: of the node.
        mel_distance: mean absolute log-mel difference from the float models, dB.
        snr_db: against the float models, of all windows together.
        params: weights that were quantized; 0 for activations.
        size: their bytes as float32.
    """

    name: str
    op_type: str
    mel_distance: float
    snr_db: float
    params: int
    size: int

    @property
    def snr_db_per_mb(self) -> float:
        """What the weights' noise would leave if they had a megabyte at 8 bits, all of it as bad; -inf for none."""
        return self.snr_db + 10 * math.log10(self.params / 1e6) if self.params else -math.inf

    @property
    def mel_distance_per_mb(self) -> float:
        """The log-mel distance of such a megabyte, distances of independent noises adding as their squares do."""
        return self.mel_distance / math.sqrt(self.params / 1e6) if self.params else math.inf


COLUMNS = get_type_hints(Sensitivity)
"""Of the file, in order, with their types."""


def read_sensitivities(path: Path | str) -> dict[str, Sensitivity]:
    """Read a table, node name to row, in the order of the file.

    Raises:
        KokoroNpuError: the file is missing, or a row lacks a column or holds a value that is no number.
    """
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except OSError as error:
        raise KokoroNpuError(f"{path}: {error.strerror}; the stage sensitivity writes it") from None
    table = {}
    for line, row in enumerate(rows, start=2):
        try:
            found = Sensitivity(**{column: kind(row[column]) for column, kind in COLUMNS.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise KokoroNpuError(f"{path}, line {line}: {error}; expected the columns {', '.join(COLUMNS)}") from None
        table[found.name] = found
    return table
