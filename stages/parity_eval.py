"""Stage parity-eval@<frames>: fidelity of one bucket against the unpadded PyTorch model, gated."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.corpus.reference_set import EVALUATION, load_reference_set
from kokoro_npu.evaluate.gates import check_gates
from kokoro_npu.evaluate.parity import evaluate, fitting, summarize, variants
from kokoro_npu.geometry import Bucket
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/parity/<frames>.csv, its audio, and reports/parity/<frames>.json, then apply the gates."""
    bucket = Bucket(cfg.frames)
    model = load_kmodel(places.WEIGHTS)
    recorded = fitting(list(load_reference_set(places.REFERENCE_SET, EVALUATION)), bucket, model)
    paths = (places.decoder(directory, cfg.frames) for directory in (places.DECODERS, places.QUANTIZED))
    decoders = variants(model, bucket, *paths)
    table = evaluate(recorded, bucket, decoders, places.PARITY / str(cfg.frames))
    write_table(places.PARITY / f"{cfg.frames}.csv", table)
    report = places.REPORTS / f"parity/{cfg.frames}.json"
    write_report(report, summarize(table), cfg.quantize.precision, "onnxruntime-cpu")
    gates = {**cfg.parity.gates, **cfg.quantize.gates}
    check_gates(table, gates, f"parity-eval@{cfg.frames}", cfg.parity.fill_min)


if __name__ == "__main__":
    main()
