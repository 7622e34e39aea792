"""Stage device-profile@<frames>: the split model on ONNX Runtime CPU beside PyTorch, or the binary on real devices."""

from pathlib import Path
from typing import Any

from _config import plain, stage
from omegaconf import DictConfig

from kokoro_npu.corpus import EVALUATION
from kokoro_npu.features import Recorded, load_recorded, longest_fitting
from kokoro_npu.files import atomic, write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.profile import BACKEND, Sentence, Settings, profile_bucket
from kokoro_npu.report import metrics_row
from kokoro_npu.versions import provenance
from kokoro_npu.weights import source_label

WEIGHTS = Path("artifacts/weights")
MODELS = Path("artifacts/cpu")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/profile/<frames> and reports/profile/<frames>.json."""
    name = f"kokoro_decoder_{cfg.frames}.onnx"
    decoders = {"": Path("artifacts/decoder") / name, "quant_": Path("artifacts/quantized") / name}
    recorded = list(load_recorded("artifacts/features", EVALUATION))
    measure = on_devices if cfg.compile.backend == "aihub" else on_cpu
    report = measure(cfg, recorded, Bucket(cfg.frames), decoders, Path("artifacts/profile") / str(cfg.frames))
    made_by = provenance(source_label(WEIGHTS), cfg.quantize.precision, report["backend"])
    write_json(f"reports/profile/{cfg.frames}.json", metrics_row(report) | made_by)


def on_cpu(
    cfg: DictConfig, recorded: list[Recorded], bucket: Bucket, decoders: dict[str, Path], out_dir: Path
) -> dict[str, Any]:
    spoken = longest_fitting(recorded, bucket)
    sentence = Sentence(spoken.tokens, spoken.voice, spoken.speed, spoken.frames)
    duration, prosody = MODELS / "kokoro_duration.onnx", MODELS / "kokoro_prosody.onnx"
    with atomic(out_dir / "devices.csv") as tmp:
        tmp.write_text(f"device,backend\n,{BACKEND}\n", encoding="utf-8")
    return profile_bucket(sentence, bucket, duration, prosody, decoders, WEIGHTS, Settings(**cfg.profile))


def on_devices(
    cfg: DictConfig, recorded: list[Recorded], bucket: Bucket, decoders: dict[str, Path], out_dir: Path
) -> dict[str, Any]:
    # Only here: the processes that on_cpu measures import this script, and what it imports counts as their memory.
    from kokoro_npu.aihub.profile import profile_on_devices
    from kokoro_npu.aihub.settings import Settings as Service
    from kokoro_npu.parity import fitting
    from kokoro_npu.weights import load_kmodel

    utterances = fitting(recorded, bucket, load_kmodel(WEIGHTS))
    compiled = Path("artifacts/compiled") / str(bucket.frames)
    return profile_on_devices(utterances, bucket, decoders, compiled, Service.parse(plain(cfg.aihub)), out_dir)


if __name__ == "__main__":
    main()
