"""Stage decoder-weights: the weights that the decoders of all buckets share."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.model.export import export_decoder
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage

ANY_FRAMES = 8  # the weights are the same in every bucket; a small one is exported fastest


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/decoder/kokoro_decoder.weights and its index."""
    model = export_decoder(load_kmodel(places.WEIGHTS), Bucket(ANY_FRAMES), cfg.export.opset)
    Pack.write(model, places.DECODERS / places.SHARED_WEIGHTS)


if __name__ == "__main__":
    main()
