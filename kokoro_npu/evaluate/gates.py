"""Gates on parity: bounds of a variant's worst figure, and the utterances that each of them judges."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.errors import KokoroNpuError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

FIGURES = {"snr_db": "min", "waveform_corr": "min", "magspec_corr": "min", "logmel_mae": "max", "band_db": "max"}
"""Columns of :func:`kokoro_npu.evaluate.parity.evaluate`'s table that describe sound, and which end is the worst."""


class GateVerdict(NamedTuple):
    """What a gate says: the worst utterance it judges, its figure, and by how much that is better than the bound."""

    utterance: str
    figure: float
    margin: float

    @property
    def held(self) -> bool:
        """False also where the figure is not a number."""
        return self.margin >= 0


def gate_names(*variants: str) -> list[str]:
    """Names of all gates that there can be on some variants: ``<variant>_<figure>_<min|max>``."""
    return [f"{variant}_{figure}_{worst}" for variant in variants for figure, worst in FIGURES.items()]


def worst_figures(table: "pd.DataFrame") -> dict[str, float]:
    """The worst figures of each variant over all its utterances, by the names of their gates."""
    return {
        f"{variant}_{figure}_{worst}": round(float(rows[figure].agg(worst)), 6)
        for variant, rows in table.groupby("variant")
        for figure, worst in FIGURES.items()
    }


def judge(table: "pd.DataFrame", gate: str, bound: float, fill_min: float) -> GateVerdict:
    """Judge one gate.

    Float decoders are held to theirs at any fill. The quantized one is not where an utterance fills less of the bucket
    than ``fill_min``: ranges that serve a few words in minutes of padding would cost all others precision, and a host
    takes a smaller bucket.

    Args:
        table: of :func:`kokoro_npu.evaluate.parity.evaluate`.
        gate: ``<variant>_<figure>_<min|max>``, such as ``fp32_snr_db_min``.
        bound: its value.
        fill_min: fraction of the bucket; if no utterance reaches it, the fullest is judged.

    Raises:
        KokoroNpuError: the table has no such variant or figure.
    """
    variants = [str(name) for name in table["variant"].unique()]
    for variant in variants:
        figure, _, end = gate.removeprefix(f"{variant}_").rpartition("_")
        if gate.startswith(f"{variant}_") and figure in table.columns and end in ("min", "max"):
            break
    else:
        hint = did_you_mean(gate, gate_names(*variants))
        raise KokoroNpuError(f"the gate {gate} judges nothing that was measured; {hint}")
    rows = table[table["variant"] == variant].set_index("utterance")
    if variant == QUANTIZED:
        rows = rows[rows["fill"] >= min(fill_min, rows["fill"].max())]
    margins = rows[figure] - bound if end == "min" else bound - rows[figure]
    worst = int(margins.fillna(float("-inf")).to_numpy().argmin())
    return GateVerdict(str(rows.index[worst]), float(rows[figure].iloc[worst]), float(margins.iloc[worst]))


def check_gates(table: "pd.DataFrame", gates: Mapping[str, float], where: str, fill_min: float = 0.0) -> None:
    """Require every gate, and the durations of PyTorch.

    Args:
        table: of :func:`kokoro_npu.evaluate.parity.evaluate`.
        gates: name to bound.
        where: names the bucket in the error.
        fill_min: see `judge`.

    Raises:
        KokoroNpuError: tokens whose duration differs from PyTorch's; or the first gate that is missed, with the worst
            utterance and by how much; or a gate that judges nothing.
    """
    moved = table.loc[table["duration_mismatches"] > 0, "utterance"]
    if len(moved):
        raise KokoroNpuError(f"{where}: durations of {moved.iloc[0]} differ from PyTorch's")
    for gate, bound in gates.items():
        verdict = judge(table, gate, bound, fill_min)
        if not verdict.held:
            raise KokoroNpuError(
                f"{where}: {verdict.utterance} misses {gate} {bound:g} with {verdict.figure:.4g}, "
                f"by {-verdict.margin:.3g}; the table is beside the report"
            )
