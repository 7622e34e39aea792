"""The decoder in static 8 bits, weights and activations: for CPUs and for NNAPI, and not for the ear.

Its ranges are its own: the build's are widened for 16-bit activations, where a bit of headroom costs nothing.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from onnx import ModelProto

from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.calibrate import calibrate, calibration_samples
from kokoro_npu.quantize.recipe import Calibration, Recipe

HEAD = "/generator/head/"


def static_recipe(frames: Iterable[int], float_scopes: tuple[str, ...], short_windows: tuple[int, ...] = ()) -> Recipe:
    """8-bit weights a channel and 8-bit activations by their extremes on the buckets ``frames``.

    ``short_windows`` as in :class:`Calibration`: without them a short utterance clips to silence in a long bucket.
    """
    calibration = Calibration(tuple(sorted(frames)), method="minmax", short_windows=short_windows, headroom=1.0)
    return Recipe(
        precision="w8a8",
        activation_bits=8,
        weight_bits=8,
        per_channel=True,
        float_scopes=float_scopes,
        calibration=calibration,
    )


def static_encodings(
    models: Mapping[int, ModelProto], recorded: Iterable[ReferenceUtterance], recipe: Recipe, encodings_path: Path
) -> None:
    """Measure ranges on the utterances that fit the recipe's buckets.

    Args:
        models: bucket frames to float decoder, weights inside; at least those of the recipe.
        recorded: utterances; longer ones than the largest bucket of the recipe are left out.
        recipe: of `static_recipe`.
        encodings_path: JSON to write.
    """
    longest = max(recipe.calibration.frames)
    samples = calibration_samples([item for item in recorded if item.frames <= longest], recipe.calibration)
    calibrate(((models[bucket.frames], inputs) for bucket, inputs in samples.items()), recipe, encodings_path)


def quantize_static8(model: ModelProto, recipe: Recipe, encodings_path: Path) -> ModelProto:
    """A copy of a float decoder in 8 bits; ``model`` is left as it is."""
    copy = ModelProto.FromString(model.SerializeToString())
    return quantize_decoder(copy, recipe, encodings_path)
