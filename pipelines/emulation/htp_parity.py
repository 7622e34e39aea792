"""Stage htp-parity: the whole decoder in the HTP emulation, on a small bucket, against the unpadded PyTorch model."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.corpus.reference_set import EVALUATION, load_reference_set
from kokoro_npu.emulation.htp import BACKEND, FP16, require_emulation
from kokoro_npu.evaluate.emulated import EmulatedDecoder, decode_all, short_utterances, variants
from kokoro_npu.evaluate.gates import check_gates, worst_figures
from kokoro_npu.evaluate.parity import evaluate
from kokoro_npu.geometry import Bucket
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage

OUT = places.EMULATION / "parity"


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/emulation/parity and reports/htp_parity/<frames>.json, then apply the gates."""
    require_emulation()
    options, bucket, precision = cfg.htp_parity, Bucket(cfg.htp_parity.frames), cfg.quantize.precision
    recorded = list(load_reference_set(places.REFERENCE_SET, EVALUATION))
    utterances = short_utterances(recorded, bucket, options.utterances, load_kmodel(places.WEIGHTS))
    decoders = [
        EmulatedDecoder(FP16, places.EMULATED_FLOAT, "fp16"),
        EmulatedDecoder(QUANTIZED, places.EMULATED_QUANTIZED, precision),
    ]
    target, settings = Target(**plain(cfg.target)), CompileSettings(**cfg.compile)
    cache = places.EMULATION_CACHE / "decodings"
    audio = decode_all(decoders, utterances, bucket, target, settings, cache, options.processes)
    table = evaluate(utterances, bucket, variants(audio, places.EMULATED_QUANTIZED), OUT)
    write_table(OUT / "table.csv", table)
    made_of = {"utterances": len(utterances), "frames": bucket.frames, "soc_model": target.soc_model}
    report = {**made_of, "optimization_level": settings.optimization_level, **worst_figures(table)}
    write_report(places.REPORTS / f"htp_parity/{bucket.frames}.json", report, precision, BACKEND)
    check_gates(table, options.gates, f"htp-parity of {bucket.frames} frames")


if __name__ == "__main__":
    main()
