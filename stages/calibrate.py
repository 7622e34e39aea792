"""Stage calibrate: encodings from one small bucket, and the quantized weights that all buckets share."""

from pathlib import Path

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
    bucket = Bucket(recipe.calibration.frames)
    model = export_decoder(load_kmodel("artifacts/weights"), bucket, cfg.export.opset)
    if recipe.is_float:
        write_json(ENCODINGS, {})
    else:
        recorded = list(load_recorded("artifacts/features", CALIBRATION))
        calibrate(model, list(calibration_samples(recorded, recipe.calibration)), recipe, ENCODINGS)
    Pack.write(quantize_decoder(model, recipe, ENCODINGS), OUT / "kokoro_decoder.weights")


if __name__ == "__main__":
    main()
