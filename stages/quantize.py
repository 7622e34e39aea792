"""Stage quantize@<frames>: the quantized decoder of one bucket, from encodings that all buckets share."""

from pathlib import Path

import onnx
from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.quantize import Recipe, load_rounded, quantize_decoder
from kokoro_npu.shared_weights import Pack

OUT = Path("artifacts/quantized")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/quantized/kokoro_decoder_<frames>.onnx."""
    name = f"kokoro_decoder_{cfg.frames}.onnx"
    recipe = Recipe.from_options(plain(cfg.quantize))
    rounded = load_rounded(OUT / "rounded.safetensors")
    model = quantize_decoder(onnx.load(Path("artifacts/decoder") / name), recipe, OUT / "encodings.json", rounded)
    Pack.open(OUT / "kokoro_decoder.weights").save(model, OUT / name)


if __name__ == "__main__":
    main()
