"""Stage quantize@<frames>: the quantized decoder of one bucket, from encodings that all buckets share."""

import onnx
from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.recipe import Recipe
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/quantized/kokoro_decoder_<frames>.onnx."""
    recipe = Recipe.from_options(plain(cfg.quantize))
    model = quantize_decoder(
        onnx.load(places.decoder(places.DECODERS, cfg.frames)), recipe, places.QUANTIZED / places.ENCODINGS
    )
    Pack.open(places.QUANTIZED / places.SHARED_WEIGHTS).save(model, places.decoder(places.QUANTIZED, cfg.frames))


if __name__ == "__main__":
    main()
