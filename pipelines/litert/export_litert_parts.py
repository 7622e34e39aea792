"""Stage export-litert-parts: the models before the decoder for LiteRT, in float32 and with int8 weights, judged."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import load_reference_set
from kokoro_npu.corpus.utterances import EVALUATION
from kokoro_npu.files import write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.runtimes import litert, litert_parts
from kokoro_npu.runtimes.compare import prefixed
from kokoro_npu.versions import flat_versions, provenance
from kokoro_npu.weights.canonical import source_label
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage

ARTIFACTS = Path("artifacts")


@stage
def main(cfg: DictConfig) -> None:
    """Write the .tflite files of both parts in artifacts/litert/parts, and reports/litert/parts.json."""
    sizes = cfg.runtimes.litert_parts
    bucket = Bucket(sizes.frames)
    model = load_kmodel(ARTIFACTS / "weights")
    recorded = list(load_reference_set(places.REFERENCE_SET, EVALUATION))
    fp32, int8 = (litert_parts.paths(ARTIFACTS / "litert/parts", precision) for precision in ("fp32", "int8"))
    litert_parts.convert(model, sizes.tokens, bucket, fp32)
    report = {"tokens": sizes.tokens, "frames": bucket.frames}
    litert_parts.quantize(fp32, int8)
    for precision, files in (("fp32", fp32), ("int8", int8)):
        found = litert_parts.judge(model, recorded, sizes.tokens, bucket, files, cfg.runtimes.threads)
        sizes_of_files = {f"{part}_bytes": path.stat().st_size for part, path in files.items()}
        report |= prefixed(precision, found | sizes_of_files)
    made_by = provenance(source_label(ARTIFACTS / "weights"), "fp32+int8", "litert") | flat_versions(litert.TOOLS)
    write_json("reports/litert/parts.json", report | made_by)
    litert_parts.check_gates(report, cfg.runtimes.gates.litert_parts)


if __name__ == "__main__":
    main()
