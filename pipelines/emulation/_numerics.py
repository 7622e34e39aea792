"""What the stages op-classes and op-numerics share: forms of a decoder through the numerical op audit."""

from pathlib import Path

import onnx
from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.corpus.reference_set import load_reference_set
from kokoro_npu.corpus.utterances import EVALUATION
from kokoro_npu.emulation.htp import BACKEND, require_emulation
from kokoro_npu.emulation.numerics import FP16, QUANTIZED, Form, audit_numerics, check_gates, summarize
from kokoro_npu.files import atomic, sha256, write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.host.steps import crop, pad_to_bucket
from kokoro_npu.versions import provenance
from kokoro_npu.weights.canonical import source_label
from stages._config import plain

CACHE = Path("artifacts/emulation/cache/classes")
WEIGHTS = Path("artifacts/decoder/kokoro_decoder.weights.json")
QUANTIZED_WEIGHTS = Path("artifacts/quantized/kokoro_decoder.weights.json")


def audit(cfg: DictConfig, frames: int, float_path: Path, quantized_path: Path, table_path: Path, report: Path) -> None:
    """Audit one decoder; write its table and report, then apply the gates."""
    require_emulation()
    forms = [
        Form(FP16, onnx.load(float_path), sha256(WEIGHTS)),
        Form(
            QUANTIZED,
            onnx.load(quantized_path),
            sha256(QUANTIZED_WEIGHTS) + sha256("artifacts/quantized/encodings.json"),
        ),
    ]
    shortest = next(load_reference_set(places.REFERENCE_SET, EVALUATION))
    # Shorter than the bucket where it can be: the padding and its ratios are then heard.
    features = crop(shortest.features, min(shortest.frames, frames))
    target, settings = Target(**plain(cfg.target)), CompileSettings(**cfg.compile)
    feeds = pad_to_bucket(features, Bucket(frames))
    options = cfg.op_numerics
    table = audit_numerics(forms, frames, feeds, target, settings, CACHE, options.max_seconds, options.processes)
    with atomic(table_path) as tmp:
        table.to_csv(tmp, index=False)
    made_by = provenance(source_label("artifacts/weights"), cfg.quantize.precision, BACKEND)
    level = {"optimization_level": settings.optimization_level, "soc_model": target.soc_model, "frames": frames}
    write_json(report, summarize(table) | level | made_by)
    check_gates(table, options.gates, f"op-numerics of {frames} frames")
