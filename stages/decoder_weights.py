"""Stage decoder-weights: the weights that the decoders of all buckets share."""

from pathlib import Path

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.export import export_decoder
from kokoro_npu.geometry import Bucket
from kokoro_npu.shared_weights import Pack
from kokoro_npu.weights import load_kmodel

ANY_FRAMES = 8  # the weights are the same in every bucket; a small one is exported fastest


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/decoder/kokoro_decoder.weights and its index."""
    model = export_decoder(load_kmodel("artifacts/weights"), Bucket(ANY_FRAMES), cfg.export.opset)
    Pack.write(model, Path("artifacts/decoder/kokoro_decoder.weights"))


if __name__ == "__main__":
    main()
