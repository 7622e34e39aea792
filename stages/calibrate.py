"""Stage calibrate: encodings by tensor name, rounded weights, and the quantized weights that all buckets share."""

from pathlib import Path

import onnx
from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.corpus import CALIBRATION
from kokoro_npu.export import export_decoder
from kokoro_npu.features import load_recorded
from kokoro_npu.files import write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize import Recipe, calibrate, calibration_samples, quantize_decoder, save_rounded
from kokoro_npu.quantize.rounding import round_decoder
from kokoro_npu.shared_weights import Pack
from kokoro_npu.weights import load_kmodel

OUT = Path("artifacts/quantized")
ENCODINGS = OUT / "encodings.json"


@stage
def main(cfg: DictConfig) -> None:
    """Write encodings.json, rounded.safetensors, kokoro_decoder.weights and its .json to artifacts/quantized."""
    recipe = Recipe.from_options(plain(cfg.quantize))
    kmodel = load_kmodel("artifacts/weights")

    def decoder(bucket: Bucket) -> onnx.ModelProto:
        # Unfolded: the same tensors, and fewer copies of them.
        return export_decoder(kmodel, bucket, cfg.export.opset, rows=1)

    recorded = list(load_recorded("artifacts/features", CALIBRATION))
    smallest = decoder(Bucket(min(recipe.calibration.frames)))
    if recipe.is_float:
        write_json(ENCODINGS, {})
    else:
        samples = calibration_samples(recorded, recipe.calibration)
        calibrate(((decoder(bucket), inputs) for bucket, inputs in samples.items()), recipe, ENCODINGS)
    rounded = round_decoder(kmodel.decoder, recorded, recipe.rounded_weights(smallest))
    save_rounded(rounded, OUT / "rounded.safetensors")
    # The weights are the same in every bucket.
    Pack.write(quantize_decoder(smallest, recipe, ENCODINGS, rounded), OUT / "kokoro_decoder.weights")


if __name__ == "__main__":
    main()
