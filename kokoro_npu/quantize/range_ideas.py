"""What each idea for the ranges of activations brings, one at a time.

Activations have 16 bits, and so have the weights, so that it is the ranges that are heard. Percentile and entropy are
ONNX Runtime's calibrators with its own constants; MSE ranges are among the ideas for weights
(:mod:`kokoro_npu.quantize.ideas`).
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx

from kokoro_npu.features import Recorded
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize.calibrate import calibrate, calibration_samples
from kokoro_npu.quantize.encodings import Ranges, load_ranges, save_ranges
from kokoro_npu.quantize.ideas import Result
from kokoro_npu.quantize.model import quantize_decoder
from kokoro_npu.quantize.recipe import Recipe
from kokoro_npu.runtime import Array, pad_to_bucket, trim
from kokoro_npu.sessions import cpu_session

_SNAKE = "/snakes"


def widened(ranges: Ranges, factor: float) -> Ranges:
    """Every range times ``factor``."""
    return {name: (low * factor, high * factor) for name, (low, high) in ranges.items()}


def symmetric_snake(ranges: Ranges) -> Ranges:
    """What a Snake computes gets a range symmetric about zero; all have asymmetric ones else."""
    peaks = {name: max(-low, high) for name, (low, high) in ranges.items() if _SNAKE in name}
    return ranges | {name: (-peak, peak) for name, peak in peaks.items()}


_Change = Callable[[Ranges], Ranges]
IDEAS: dict[str, dict[str, _Change]] = {
    "minmax": {
        "activations, min-max": partial(widened, factor=1.0),
        "activations, min-max, headroom 1.25": partial(widened, factor=1.25),
        "activations, min-max, headroom 2": partial(widened, factor=2.0),
        "activations, min-max, symmetric for Snake": symmetric_snake,
    },
    "percentile": {"activations, percentile ranges (99.999)": partial(widened, factor=1.0)},
    "entropy": {"activations, entropy ranges": partial(widened, factor=1.0)},
}
"""Calibration method to what is made of its ranges, by the idea's name."""


def compare_ranges(
    decoder: onnx.ModelProto,
    bucket: Bucket,
    recorded: Sequence[Recorded],
    judged: Sequence[Recorded],
    recipe: Recipe,
) -> list[Result]:
    """All ideas on the same utterances.

    Args:
        decoder: the float decoder, weights inside.
        bucket: its size; longer utterances are left out.
        recorded: the calibration part.
        judged: the evaluation part.
        recipe: what stays floating.

    Returns:
        For each idea the worst utterance against the float decoder.
    """
    recipe = replace(recipe, weight_bits=16)
    inputs = [(item.frames, pad_to_bucket(item.features, bucket)) for item in judged if item.frames <= bucket.frames]
    results = []
    with tempfile.TemporaryDirectory(prefix="kokoro-ranges-") as directory:
        place = Path(directory)

        def hear(model: onnx.ModelProto) -> list[Array]:
            onnx.save(model, place / "model.onnx")
            session = cpu_session(place / "model.onnx")
            return [trim(session.run(None, feeds)[0], frames) for frames, feeds in inputs]

        truth = hear(decoder)
        for method, changes in IDEAS.items():
            measuring = replace(
                recipe.calibration, frames=(bucket.frames,), method=method, headroom=1.0, norm_headroom=1.0
            )
            samples = calibration_samples(recorded, measuring)[bucket]
            calibrate([(decoder, samples)], replace(recipe, calibration=measuring), place / "measured.json")
            ranges = load_ranges(place / "measured.json")
            for idea, change in changes.items():
                save_ranges(change(ranges), place / "changed.json")
                copy = onnx.ModelProto()
                copy.CopyFrom(decoder)
                results.append(Result.judge(idea, truth, hear(quantize_decoder(copy, recipe, place / "changed.json"))))
    return results
