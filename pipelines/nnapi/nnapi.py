"""Stage nnapi: an INT8 QDQ decoder for buckets of 5, 10 and 15 s, and what Android's NNAPI could carry of it."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report
from kokoro_npu.corpus.reference_set import CALIBRATION, EVALUATION, load_reference_set
from kokoro_npu.evaluate.parity import fitting
from kokoro_npu.geometry import Bucket
from kokoro_npu.runtimes.nnapi import PRECISION, report, write_decoders
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/nnapi and reports/nnapi/<frames>.json."""
    model = load_kmodel(places.WEIGHTS)
    calibration, evaluation = (list(load_reference_set(places.REFERENCE_SET, p)) for p in (CALIBRATION, EVALUATION))
    paths = write_decoders(model, list(cfg.nnapi.frames), calibration, cfg.export.opset, places.NNAPI)
    for frames, path in paths.items():
        bucket = Bucket(frames)
        found = report(path, bucket, fitting(evaluation, bucket, model))
        write_report(places.REPORTS / places.NNAPI.name / f"{frames}.json", found, PRECISION, "onnxruntime-cpu")


if __name__ == "__main__":
    main()
