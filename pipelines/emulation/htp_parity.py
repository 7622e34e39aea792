"""Stage htp-parity: the whole decoder in the HTP emulation, on a small bucket, against the unpadded PyTorch model."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.corpus.reference_set import load_reference_set
from kokoro_npu.corpus.utterances import EVALUATION
from kokoro_npu.emulation.htp import BACKEND, require_emulation
from kokoro_npu.evaluate import emulated as emulated
from kokoro_npu.evaluate.parity import check_gates, evaluate
from kokoro_npu.files import atomic, write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.versions import provenance
from kokoro_npu.weights.canonical import source_label
from kokoro_npu.weights.kmodel import load_kmodel
from stages._config import plain, stage

WEIGHTS, DECODERS = Path("artifacts/weights"), Path("artifacts/emulation/decoder")
CACHE = Path("artifacts/emulation/cache/decodings")
OUT = Path("artifacts/emulation/parity")


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/emulation/parity and reports/htp_parity/<frames>.json, then apply the gates."""
    require_emulation()
    options, bucket, precision = cfg.htp_parity, Bucket(cfg.htp_parity.frames), cfg.quantize.precision
    recorded = list(load_reference_set(places.REFERENCE_SET, EVALUATION))
    utterances = emulated.short_utterances(recorded, bucket, options.utterances, load_kmodel(WEIGHTS))
    decoders = [
        emulated.Decoder(emulated.FP16, DECODERS / "float.onnx", "fp16"),
        emulated.Decoder(QUANTIZED, DECODERS / "quantized.onnx", precision),
    ]
    target, settings = Target(**plain(cfg.target)), CompileSettings(**cfg.compile)
    audio = emulated.decode_all(decoders, utterances, bucket, target, settings, CACHE, options.processes)
    emulated.write_wavs(audio, utterances, OUT)
    table = evaluate(utterances, bucket, emulated.variants(audio, utterances, bucket, DECODERS / "quantized.onnx"))
    with atomic(OUT / "table.csv") as tmp:
        table.to_csv(tmp, index=False, float_format="%.6g")
    made_by = provenance(source_label(WEIGHTS), precision, BACKEND)
    report = emulated.summarize(table) | {"frames": bucket.frames, "optimization_level": settings.optimization_level}
    write_json(f"reports/htp_parity/{bucket.frames}.json", report | {"soc_model": target.soc_model} | made_by)
    check_gates(table, options.gates, f"htp-parity of {bucket.frames} frames")


if __name__ == "__main__":
    main()
