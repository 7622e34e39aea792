"""From trials and thresholds to a recipe.

A weight's noise is bought off with bytes: at 16 bits it costs its bytes once more and is no longer heard. What it is
worth is the damage for each megabyte, so that is what the thresholds are on, by both measures: noises of different
layers add up nearly as powers, so the SNR that a trial left, plus ten times the logarithm of the weight's megabytes at
8 bits, and its log-mel distance over their root.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from kokoro_npu.quantize.overrides import Line, weighted_nodes
from kokoro_npu.sensitivity.analysis import activation_cases
from kokoro_npu.sensitivity.table import Trial

COMMENT = """Derived from trials (docs/quantization.md). Patterns are over node names; a later line wins.
To change a line for good, put yours into recipes/pins.yaml, which the stage derive-recipe appends."""


@dataclass(frozen=True)
class Thresholds:
    """What decides.

    Attributes:
        weights_snr_db: a weight takes 16 bits if its trial's SNR, plus 10 log10 of its megabytes, is below this,
        weights_mel_distance: or if its log-mel distance, over the root of its megabytes, is above this.
        activations_snr_db: a module takes 8-bit activations if its trial's SNR is at least this.
        float_snr_db: a module stays floating if its trial's SNR is below this.
    """

    weights_snr_db: float
    weights_mel_distance: float
    activations_snr_db: float
    float_snr_db: float


def derive(model: onnx.ModelProto, trials: Mapping[str, Trial], thresholds: Thresholds) -> list[Line]:
    """Lines for a decoder; nodes that agree share one.

    Args:
        model: the float decoder.
        trials: by node name; those of other models are not looked at.
        thresholds: what decides.
    """
    lines: list[Line] = []
    weighted = [node.name for node in weighted_nodes(model)]
    names = [node.name for node in model.graph.node]
    wide = {name for name in weighted if name in trials and _hurts(trials[name], thresholds)}
    for pattern, found in patterns(weighted, wide):
        lines.append(Line(pattern, _why_wide([trials[name] for name in found]), weights=16))
    for case in activation_cases(model):
        if case.node not in trials:
            continue
        trial, scope = trials[case.node], case.node.rpartition("/")[0]
        pattern = f"{scope}/*"
        assert any(name.startswith(f"{scope}/") for name in names)
        if trial.snr_db < thresholds.float_snr_db:
            lines.append(Line(pattern, f"with 8-bit activations alone {trial.snr_db:.1f} dB", float=True))
        elif trial.snr_db >= thresholds.activations_snr_db:
            lines.append(Line(pattern, f"with 8-bit activations alone {trial.snr_db:.1f} dB", activations=8))
    return lines


def _hurts(trial: Trial, thresholds: Thresholds) -> bool:
    return (
        trial.snr_db_per_mb < thresholds.weights_snr_db or trial.mel_distance_per_mb > thresholds.weights_mel_distance
    )


def _why_wide(trials: Sequence[Trial]) -> str:
    snr = -10 * math.log10(sum(10 ** (-trial.snr_db / 10) for trial in trials))
    mel = math.sqrt(sum(trial.mel_distance**2 for trial in trials))
    size = sum(trial.params for trial in trials) / 1e6
    return f"{size:.2g} MB that at 8 bits leave {snr:.1f} dB, log-mel {mel:.3f} dB"


def patterns(names: Sequence[str], chosen: set[str]) -> list[tuple[str, list[str]]]:
    """Shell patterns that match of ``names`` exactly the ``chosen``, as few as module paths allow.

    Returns:
        Each pattern with the chosen names that it matches, in the order of ``names``.
    """
    result: list[tuple[str, list[str]]] = []
    _collapse("", list(names), chosen, result)
    return result


def _collapse(prefix: str, names: list[str], chosen: set[str], result: list[tuple[str, list[str]]]) -> None:
    mine = [name for name in names if name in chosen]
    if not mine:
        return
    if len(mine) == len(names):
        result.append((f"{prefix}*" if len(names) > 1 else names[0], mine))
        return
    children: dict[str, list[str]] = {}
    for name in names:
        head, slash, _ = name[len(prefix) :].partition("/")
        children.setdefault(f"{prefix}{head}{slash}", []).append(name)
    for child, below in children.items():
        _collapse(child, below, chosen, result)
