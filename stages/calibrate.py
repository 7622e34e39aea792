"""Stage calibrate: encodings by tensor name, rounded weights, and the quantized weights that all buckets share."""

from pathlib import Path

from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.corpus import CALIBRATION
from kokoro_npu.features import load_recorded
from kokoro_npu.quantize import Recipe, quantize_decoder, save_rounded
from kokoro_npu.quantize.preparation import prepare
from kokoro_npu.shared_weights import Pack
from kokoro_npu.weights import load_kmodel

OUT = Path("artifacts/quantized")
ENCODINGS = OUT / "encodings.json"


@stage
def main(cfg: DictConfig) -> None:
    """Write encodings.json, rounded.safetensors, kokoro_decoder.weights and its .json to artifacts/quantized."""
    recipe = Recipe.from_options(plain(cfg.quantize))
    recorded = list(load_recorded("artifacts/features", CALIBRATION))
    smallest, rounded = prepare(load_kmodel("artifacts/weights"), recorded, recipe, cfg.export.opset, ENCODINGS)
    save_rounded(rounded, OUT / "rounded.safetensors")
    # The weights are the same in every bucket.
    Pack.write(quantize_decoder(smallest, recipe, ENCODINGS, rounded), OUT / "kokoro_decoder.weights")


if __name__ == "__main__":
    main()
