"""Stage export-decoder@<frames>: the static float decoder of one bucket."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.model.export import export_decoder
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/decoder/kokoro_decoder_<frames>.onnx."""
    model = export_decoder(load_kmodel(places.WEIGHTS), Bucket(cfg.frames), cfg.export.opset)
    Pack.open(places.DECODERS / places.SHARED_WEIGHTS).save(model, places.decoder(places.DECODERS, cfg.frames))


if __name__ == "__main__":
    main()
