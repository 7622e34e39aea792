"""Stage emulated-decoder: the decoder of the small bucket that is emulated, float and quantized, weights inside."""

from pathlib import Path

import onnx
from omegaconf import DictConfig

from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.recipe import Recipe
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage

OUT, QUANTIZED = Path("artifacts/emulation/decoder"), Path("artifacts/quantized")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/emulation/decoder/float.onnx and quantized.onnx."""
    model: onnx.ModelProto = export_decoder(
        load_kmodel("artifacts/weights"), Bucket(cfg.htp_parity.frames), cfg.export.opset
    )
    write_onnx(OUT / "float.onnx", model)
    recipe = Recipe.from_options(plain(cfg.quantize))
    write_onnx(OUT / "quantized.onnx", quantize_decoder(model, recipe, QUANTIZED / "encodings.json"))


if __name__ == "__main__":
    main()
