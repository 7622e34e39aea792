"""Stage calibrate: encodings from one small bucket, and the quantized weights that all buckets share."""

from pathlib import Path

import onnx
from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.corpus import CALIBRATION
from kokoro_npu.export import export_decoder
from kokoro_npu.features import load_recorded
from kokoro_npu.files import write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize import Recipe, calibrate, calibration_samples, quantize_decoder
from kokoro_npu.shared_weights import Pack
from kokoro_npu.weights import load_kmodel

OUT = Path("artifacts/quantized")
ENCODINGS = OUT / "encodings.json"


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/quantized/{encodings.json,kokoro_decoder.weights,kokoro_decoder.weights.json}."""
    recipe = Recipe.from_options(plain(cfg.quantize))
    kmodel = load_kmodel("artifacts/weights")

    def decoder(bucket: Bucket) -> onnx.ModelProto:
        return export_decoder(kmodel, bucket, cfg.export.opset)

    if recipe.is_float:
        write_json(ENCODINGS, {})
    else:
        recorded = list(load_recorded("artifacts/features", CALIBRATION))
        samples = calibration_samples(recorded, recipe.calibration)
        calibrate(((decoder(bucket), inputs) for bucket, inputs in samples.items()), recipe, ENCODINGS)
    # The weights are the same in every bucket.
    quantized = quantize_decoder(decoder(Bucket(min(recipe.calibration.frames))), recipe, ENCODINGS)
    Pack.write(quantized, OUT / "kokoro_decoder.weights")


if __name__ == "__main__":
    main()
