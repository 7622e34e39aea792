"""Stage device-profile@<frames>: the split model on ONNX Runtime CPU, PyTorch beside it."""

from pathlib import Path

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.corpus import EVALUATION
from kokoro_npu.features import load_recorded, longest_fitting
from kokoro_npu.files import write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.profile import Sentence, Settings, profile_bucket
from kokoro_npu.versions import provenance
from kokoro_npu.weights import source_label

WEIGHTS = Path("artifacts/weights")
MODELS = Path("artifacts/cpu")


@stage
def main(cfg: DictConfig) -> None:
    """Write reports/profile/<frames>.json."""
    name = f"kokoro_decoder_{cfg.frames}.onnx"
    bucket = Bucket(cfg.frames)
    spoken = longest_fitting(list(load_recorded("artifacts/features", EVALUATION)), bucket)
    report = profile_bucket(
        Sentence(spoken.tokens, spoken.voice, spoken.speed, spoken.frames),
        bucket,
        MODELS / "kokoro_duration.onnx",
        MODELS / "kokoro_prosody.onnx",
        {"": Path("artifacts/decoder") / name, "quant_": Path("artifacts/quantized") / name},
        WEIGHTS,
        Settings(**cfg.profile),
    )
    made_by = provenance(source_label(WEIGHTS), cfg.quantize.precision, "onnxruntime-cpu")
    write_json(f"reports/profile/{cfg.frames}.json", report | made_by)


if __name__ == "__main__":
    main()
