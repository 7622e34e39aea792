"""Stage export-litert-w8a16: the smallest bucket's decoder for LiteRT with integer convolutions, judged and timed."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import load_reference_set
from kokoro_npu.corpus.utterances import CALIBRATION
from kokoro_npu.evaluate.parity import check_gates
from kokoro_npu.host.steps import pad_to_bucket
from kokoro_npu.runtimes import litert
from kokoro_npu.runtimes.compare import Case, Settings, compare, prefixed, save
from stages._config import plain, stage

ARTIFACTS = Path("artifacts")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/litert/kokoro_decoder_w8a16.tflite, the table beside it, and reports/litert/w8a16.json."""
    case = Case.load(cfg.frames, ARTIFACTS, cfg.runtimes.utterances)
    path = ARTIFACTS / "litert/kokoro_decoder_w8a16.tflite"
    fitting = [item for item in load_reference_set(places.REFERENCE_SET, CALIBRATION) if item.frames <= cfg.frames]
    samples = [pad_to_bucket(item.features, case.bucket) for item in fitting]
    source = ARTIFACTS / f"litert/kokoro_decoder_{cfg.frames}_fp32.tflite"
    litert.quantize_convolutions(source, path, samples, litert.FLOAT_HEAD)
    # One timed run: LiteRT has no fast kernels for these convolutions on a CPU.
    settings = Settings(cfg.runtimes.threads, runs=1)
    table, report = compare({"w8a16": (litert.BACKEND, path)}, case.onnx, case.recorded, case.bucket, settings)
    report |= prefixed("w8a16", litert.inspect(path)) | {"calibration_utterances": len(samples)}
    save("litert", litert.TOOLS, case, table, report, "w8a16")
    check_gates(table, plain(cfg.runtimes.gates.litert_w8a16), "export-litert-w8a16")


if __name__ == "__main__":
    main()
