"""Stage device-profile@<frames>: the split model on ONNX Runtime CPU beside PyTorch, or the binary on real devices."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import metrics_row, write_report
from kokoro_npu.corpus.reference_set import EVALUATION, ReferenceUtterance, load_reference_set, longest_fitting
from kokoro_npu.evaluate.cpu_profile import BACKEND, Phrase, Timing, profile_bucket
from kokoro_npu.files import atomic
from kokoro_npu.geometry import Bucket
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/profile/<frames> and reports/profile/<frames>.json."""
    directories = {"": places.DECODERS, "quantized_": places.QUANTIZED}
    decoders = {prefix: places.decoder(directory, cfg.frames) for prefix, directory in directories.items()}
    recorded = list(load_reference_set(places.REFERENCE_SET, EVALUATION))
    measure = on_devices if cfg.compile.backend == "aihub" else on_cpu
    report = measure(cfg, recorded, Bucket(cfg.frames), decoders, places.PROFILE / str(cfg.frames))
    path = places.REPORTS / f"profile/{cfg.frames}.json"
    write_report(path, metrics_row(report), cfg.quantize.precision, report["backend"])


def on_cpu(
    cfg: DictConfig, recorded: list[ReferenceUtterance], bucket: Bucket, decoders: dict[str, Path], out_dir: Path
) -> dict[str, Any]:
    spoken = longest_fitting(recorded, bucket)
    phrase = Phrase(spoken.tokens, spoken.voice, spoken.speed, spoken.frames)
    duration, prosody = places.CPU / places.DURATION_MODEL, places.CPU / places.PROSODY_MODEL
    with atomic(out_dir / "devices.csv") as tmp:
        tmp.write_text(f"device,backend\n,{BACKEND}\n", encoding="utf-8")
    return profile_bucket(phrase, bucket, duration, prosody, decoders, places.WEIGHTS, Timing(**cfg.profile))


def on_devices(
    cfg: DictConfig, recorded: list[ReferenceUtterance], bucket: Bucket, decoders: dict[str, Path], out_dir: Path
) -> dict[str, Any]:
    # Only here: a build without the service needs neither its client nor torch.
    from kokoro_npu.aihub.settings import ServiceSettings
    from kokoro_npu.evaluate.device_profile import profile_on_devices
    from kokoro_npu.evaluate.parity import fitting
    from kokoro_npu.weights.kmodel import load_kmodel

    utterances = fitting(recorded, bucket, load_kmodel(places.WEIGHTS))
    compiled = places.COMPILED / str(bucket.frames)
    return profile_on_devices(utterances, bucket, decoders, compiled, ServiceSettings(**plain(cfg.aihub)), out_dir)


if __name__ == "__main__":
    main()
