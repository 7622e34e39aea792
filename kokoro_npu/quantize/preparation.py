"""What every bucket's quantized decoder is made from: encodings by tensor name."""

from collections.abc import Sequence
from pathlib import Path

import onnx
from kokoro import KModel

from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.files import write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.calibrate import calibrate, calibration_samples
from kokoro_npu.quantize.recipe import Recipe


def prepare(
    model: KModel, recorded: Sequence[ReferenceUtterance], recipe: Recipe, opset: int, encodings_path: Path
) -> onnx.ModelProto:
    """Measure a recipe's ranges.

    Args:
        model: upstream's model, weight norm removed.
        recorded: the calibration part of the corpus.
        recipe: the precision.
        opset: of the decoders that are measured.
        encodings_path: receives the encodings by tensor name; of a float precision there are none.

    Returns:
        The float decoder of the smallest calibrated bucket, weights inside.
    """

    def decoder(bucket: Bucket) -> onnx.ModelProto:
        # Unfolded: the same tensors, and fewer copies of them.
        return export_decoder(model, bucket, opset, rows=1)

    smallest = decoder(Bucket(min(recipe.calibration.frames)))
    if recipe.is_float:
        write_json(encodings_path, {})
    else:
        samples = calibration_samples(recorded, recipe.calibration)
        calibrate(((decoder(bucket), inputs) for bucket, inputs in samples.items()), recipe, encodings_path)
    return smallest
