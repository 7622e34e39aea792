"""Stage calibrate: encodings by tensor name, and the quantized weights that all buckets share."""

import onnx
from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import CALIBRATION, load_reference_set
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.calibrate import calibrate_decoder
from kokoro_npu.quantize.recipe import Recipe
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write encodings.json, kokoro_decoder.weights and its .json to artifacts/quantized."""
    kmodel = load_kmodel(places.WEIGHTS)

    def decoder(bucket: Bucket) -> onnx.ModelProto:
        # Unfolded: the same tensors, and fewer copies of them.
        return export_decoder(kmodel, bucket, cfg.export.opset, rows=1)

    encodings = places.QUANTIZED / places.ENCODINGS
    recipe = Recipe.from_options(plain(cfg.quantize))
    calibrate_decoder(decoder, list(load_reference_set(places.REFERENCE_SET, CALIBRATION)), recipe, encodings)
    # The weights are the same in every bucket.
    smallest = decoder(Bucket(min(recipe.calibration.frames)))
    Pack.write(quantize_decoder(smallest, recipe, encodings), places.QUANTIZED / places.SHARED_WEIGHTS)


if __name__ == "__main__":
    main()
