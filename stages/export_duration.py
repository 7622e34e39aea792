"""Stage export-duration: the duration and prosody models, which run on the CPU."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.files import write_onnx
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/cpu/kokoro_{duration,prosody}.onnx."""
    model = load_kmodel(places.WEIGHTS)
    write_onnx(places.CPU / places.DURATION_MODEL, export_duration(model, cfg.export.opset))
    write_onnx(places.CPU / places.PROSODY_MODEL, export_prosody(model, cfg.export.opset))


if __name__ == "__main__":
    main()
