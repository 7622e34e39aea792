"""Stage export-litert@<frames>: the decoder of one bucket for LiteRT, float32 and int8 weights, judged and timed."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.evaluate.parity import check_gates
from kokoro_npu.runtimes import litert
from kokoro_npu.runtimes.compare import Case, Settings, compare, prefixed, save
from stages._config import plain, stage

ARTIFACTS = Path("artifacts")


@stage
def main(cfg: DictConfig) -> None:
    """Write the .tflite files and the table in artifacts/litert, and reports/litert/<frames>.json."""
    case = Case.load(cfg.frames, ARTIFACTS, cfg.runtimes.utterances)
    paths = {
        precision: ARTIFACTS / f"litert/kokoro_decoder_{cfg.frames}_{precision}.tflite"
        for precision in ("fp32", "int8")
    }
    litert.convert(case.module, case.example, paths["fp32"])
    litert.quantize_weights(paths["fp32"], paths["int8"], litert.FLOAT_HEAD)
    candidates = {precision: (litert.BACKEND, path) for precision, path in paths.items()}
    settings = Settings(cfg.runtimes.threads, cfg.runtimes.runs)
    table, report = compare(candidates, case.onnx, case.recorded, case.bucket, settings)
    for precision, path in paths.items():
        report |= prefixed(precision, litert.inspect(path))
    save("litert", litert.TOOLS, case, table, report)
    check_gates(table, plain(cfg.runtimes.gates.litert), f"export-litert@{cfg.frames}")


if __name__ == "__main__":
    main()
