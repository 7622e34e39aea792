"""Stage export-litert-parts: the models before the decoder for LiteRT, in float32 and with int8 weights, judged."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report
from kokoro_npu.corpus.reference_set import EVALUATION, load_reference_set
from kokoro_npu.geometry import Bucket
from kokoro_npu.runtimes import litert, litert_parts
from kokoro_npu.runtimes.compare import check_gates
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import stage

NAME = litert.RUNTIME.name


@stage
def main(cfg: DictConfig) -> None:
    """Write the .tflite files of both models in artifacts/litert/parts, and reports/runtimes/litert/parts.json."""
    options, sizes = cfg.runtimes, cfg.runtimes.litert_parts
    utterances = list(load_reference_set(places.REFERENCE_SET, EVALUATION))
    model, out = load_kmodel(places.WEIGHTS), places.ARTIFACTS / NAME / "parts"
    report = litert_parts.export(model, utterances, sizes.tokens, Bucket(sizes.frames), options.threads, out)
    precisions = "+".join(litert_parts.PRECISIONS)
    path = places.RUNTIMES / NAME / "parts.json"
    write_report(path, report, precisions, NAME, litert.TOOLS)
    check_gates(report, options.gates.litert_parts, str(path))


if __name__ == "__main__":
    main()
