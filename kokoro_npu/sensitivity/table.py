"""The table of trials: its row, its writer and its reader, for whoever makes one and whoever decides by one."""

import csv
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic


@dataclass(frozen=True)
class Trial:
    """What quantizing one part alone did.

    Attributes:
        name: of the node; unique over all models that are tried.
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


COLUMNS = tuple(field.name for field in fields(Trial))


def write_trials(trials: Iterable[Trial], path: Path) -> None:
    """Write trials as CSV with the columns of :class:`Trial`."""
    with atomic(path) as tmp, open(tmp, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(trial) for trial in trials)


def read_trials(path: Path | str) -> dict[str, Trial]:
    """Trials by node name in the order of the file.

    Raises:
        KokoroNpuError: the file is missing, lacks a column, or holds a value that is no number.
    """
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except OSError as error:
        raise KokoroNpuError(f"{path}: {error.strerror}; the stage trial-quantization writes it") from None
    except UnicodeDecodeError:
        raise KokoroNpuError(f"{path}: not a CSV of trials") from None
    if not rows:
        raise KokoroNpuError(f"{path}: no trials in it; expected the columns {', '.join(COLUMNS)}")
    trials = {}
    for line, row in enumerate(rows, start=2):
        if missing := [column for column in COLUMNS if row.get(column) is None]:
            raise KokoroNpuError(f"{path}, line {line}: no {missing[0]}; expected the columns {', '.join(COLUMNS)}")
        try:
            trials[row["name"]] = to_trial([row[column] for column in COLUMNS])
        except ValueError as error:
            raise KokoroNpuError(f"{path}, line {line} ({row['name']}): {error}") from None
    return trials


def to_trial(cells: list[str]) -> Trial:
    """A row of the table.

    Raises:
        ValueError: a cell is no number, or there are not as many as columns.
    """
    name, op_type, mel_distance, snr_db, params, size = cells
    return Trial(name, op_type, float(mel_distance), float(snr_db), int(params), int(size))
