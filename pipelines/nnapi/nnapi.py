"""Stage nnapi: an INT8 QDQ decoder for each bucket of seed 1 (5, 10, 15 s), and what NNAPI could carry of it."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import load_reference_set
from kokoro_npu.files import write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.runtimes.nnapi import report, write_decoders
from kokoro_npu.versions import provenance
from kokoro_npu.weights.canonical import source_label
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage

WEIGHTS = Path("artifacts/weights")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/nnapi and reports/nnapi/<frames>.json."""
    recorded = {part: list(load_reference_set(places.REFERENCE_SET, part)) for part in ("calibration", "evaluation")}
    opset, out = cfg.export.opset, Path("artifacts/nnapi")
    paths = write_decoders(load_kmodel(WEIGHTS), list(cfg.nnapi.frames), recorded["calibration"], opset, out)
    for frames, path in paths.items():
        found = report(path, Bucket(frames), recorded["evaluation"])
        made_by = provenance(source_label(WEIGHTS), "w8a8", "onnxruntime-cpu")
        write_json(f"reports/nnapi/{frames}.json", found | made_by)


if __name__ == "__main__":
    main()
