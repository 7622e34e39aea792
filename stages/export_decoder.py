"""Stage export-decoder@<frames>: the static float decoder of one bucket."""

from pathlib import Path

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.export import export_decoder
from kokoro_npu.geometry import Bucket
from kokoro_npu.shared_weights import Pack
from kokoro_npu.weights import load_kmodel

DECODERS = Path("artifacts/decoder")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/decoder/kokoro_decoder_<frames>.onnx."""
    model = export_decoder(load_kmodel("artifacts/weights"), Bucket(cfg.frames), cfg.export.opset)
    Pack.open(DECODERS / "kokoro_decoder.weights").save(model, DECODERS / f"kokoro_decoder_{cfg.frames}.onnx")


if __name__ == "__main__":
    main()
