"""From the sensitivity table and thresholds to a recipe.

A weight's noise is bought off with bytes: at 16 bits it costs its bytes once more and is no longer heard. What it is
worth is the damage for each megabyte, so that is what the thresholds are on, by both measures: noises of different
layers add up nearly as powers, so the SNR that a weight alone leaves, plus ten times the logarithm of its megabytes at
8 bits, and its log-mel distance over their root.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from kokoro_npu.quantize.overrides import Override, weighted_nodes
from kokoro_npu.sensitivity.analysis import activation_parts
from kokoro_npu.sensitivity.table import Sensitivity

COMMENT = """Derived from a sensitivity analysis (docs/quantization.md). Patterns are over node names; a later one wins.
To change an override for good, put yours into recipes/fixed_overrides.yaml, which the stage derive-recipe appends."""


@dataclass(frozen=True)
class RecipeThresholds:
    """What decides.

    Attributes:
        weights_snr_db: a weight takes 16 bits if its SNR, plus 10 log10 of its megabytes, is below this,
        weights_mel_distance: or if its log-mel distance, over the root of its megabytes, is above this.
        activations_snr_db: a module takes 8-bit activations if its SNR is at least this.
        float_snr_db: a module stays floating if its SNR is below this.
    """

    weights_snr_db: float
    weights_mel_distance: float
    activations_snr_db: float
    float_snr_db: float


def derive(model: onnx.ModelProto, table: Mapping[str, Sensitivity], thresholds: RecipeThresholds) -> list[Override]:
    """Overrides for a decoder; nodes that agree share one.

    Args:
        model: the float decoder.
        table: by node name; rows of other models are not looked at.
        thresholds: what decides.
    """
    weighted = [node.name for node in weighted_nodes(model)]
    wide = {name for name in weighted if name in table and _hurts(table[name], thresholds)}
    overrides = [
        Override(pattern, _why_wide([table[name] for name in found]), weights=16)
        for pattern, found in patterns(weighted, wide)
    ]
    for part in activation_parts(model):
        if part.node not in table:
            continue
        snr = table[part.node].snr_db
        pattern, why = f"{part.node.rpartition('/')[0]}/*", f"with 8-bit activations alone {snr:.1f} dB"
        if snr < thresholds.float_snr_db:
            overrides.append(Override(pattern, why, float=True))
        elif snr >= thresholds.activations_snr_db:
            overrides.append(Override(pattern, why, activations=8))
    return overrides


def _hurts(row: Sensitivity, thresholds: RecipeThresholds) -> bool:
    return row.snr_db_per_mb < thresholds.weights_snr_db or row.mel_distance_per_mb > thresholds.weights_mel_distance


def _why_wide(rows: Sequence[Sensitivity]) -> str:
    snr = -10 * math.log10(sum(10 ** (-row.snr_db / 10) for row in rows))
    mel = math.sqrt(sum(row.mel_distance**2 for row in rows))
    size = sum(row.params for row in rows) / 1e6
    return f"{size:.2g} MB that at 8 bits leave {snr:.1f} dB, log-mel {mel:.3f} dB"


def patterns(names: Sequence[str], chosen: set[str], prefix: str = "") -> list[tuple[str, list[str]]]:
    """Shell patterns that match of ``names`` exactly the ``chosen``, as few as module paths allow.

    Args:
        names: all begin with ``prefix``.
        chosen: what is matched.
        prefix: a module's path.

    Returns:
        Each pattern with the chosen names that it matches, in the order of ``names``.
    """
    mine = [name for name in names if name in chosen]
    if not mine:
        return []
    if len(mine) == len(names):
        return [(f"{prefix}*" if len(names) > 1 else names[0], mine)]
    children: dict[str, list[str]] = {}
    for name in names:
        head, slash, _ = name[len(prefix) :].partition("/")
        children.setdefault(f"{prefix}{head}{slash}", []).append(name)
    return [found for child, below in children.items() for found in patterns(below, chosen, child)]
