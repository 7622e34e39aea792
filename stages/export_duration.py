"""Stage export-duration: the duration and prosody models, which run on the CPU."""

from pathlib import Path

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.export import export_duration, export_prosody
from kokoro_npu.files import write_onnx
from kokoro_npu.weights import load_kmodel


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/cpu/kokoro_{duration,prosody}.onnx."""
    model = load_kmodel("artifacts/weights")
    out = Path("artifacts/cpu")
    write_onnx(out / "kokoro_duration.onnx", export_duration(model, cfg.export.opset))
    write_onnx(out / "kokoro_prosody.onnx", export_prosody(model, cfg.export.opset))


if __name__ == "__main__":
    main()
