"""Stage parity-eval@<frames>: fidelity of one bucket against the unpadded PyTorch model, gated."""

from pathlib import Path

from _config import stage
from omegaconf import DictConfig

from kokoro_npu.corpus import EVALUATION
from kokoro_npu.features import load_recorded
from kokoro_npu.files import atomic, write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.parity import check_gates, evaluate, fitting, summarize, variants
from kokoro_npu.versions import provenance
from kokoro_npu.weights import load_kmodel, source_label

WEIGHTS = Path("artifacts/weights")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/parity/<frames>.csv, its audio, and reports/parity/<frames>.json, then apply the gates."""
    name = f"kokoro_decoder_{cfg.frames}.onnx"
    bucket = Bucket(cfg.frames)
    model = load_kmodel(WEIGHTS)
    recorded = fitting(list(load_recorded("artifacts/features", EVALUATION)), bucket, model)
    decoders = variants(model, bucket, Path("artifacts/decoder") / name, Path("artifacts/quantized") / name)
    table = evaluate(recorded, bucket, decoders, Path(f"artifacts/parity/{cfg.frames}"))
    with atomic(f"artifacts/parity/{cfg.frames}.csv") as tmp:
        table.to_csv(tmp, index=False, float_format="%.6g")
    made_by = provenance(source_label(WEIGHTS), cfg.quantize.precision, "onnxruntime-cpu")
    write_json(f"reports/parity/{cfg.frames}.json", summarize(table) | made_by)
    gates = {**cfg.parity.gates, **cfg.quantize.gates}
    check_gates(table, gates, f"parity-eval@{cfg.frames}", cfg.parity.fill_min)


if __name__ == "__main__":
    main()
