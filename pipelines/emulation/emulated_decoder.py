"""Stage emulated-decoder: the decoder of the small bucket that is emulated, float and quantized, weights inside."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.export import export_decoder
from kokoro_npu.quantize.apply import quantize_decoder
from kokoro_npu.quantize.recipe import Recipe
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/emulation/decoder/float.onnx and quantized.onnx."""
    model = export_decoder(load_kmodel(places.WEIGHTS), Bucket(cfg.htp_parity.frames), cfg.export.opset)
    write_onnx(places.EMULATED_FLOAT, model)
    recipe = Recipe.from_options(plain(cfg.quantize))
    write_onnx(places.EMULATED_QUANTIZED, quantize_decoder(model, recipe, places.QUANTIZED / places.ENCODINGS))


if __name__ == "__main__":
    main()
