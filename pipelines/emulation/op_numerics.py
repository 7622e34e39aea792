"""Stages op-classes and op-numerics@<frames>: each distinct op of a decoder alone through the HTP emulation.

Without ``frames`` the decoder is that of the small bucket; the figures of its classes are then known to all buckets.
"""

import onnx
from omegaconf import DictConfig, OmegaConf

from kokoro_npu.build import places
from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.corpus.reference_set import EVALUATION, load_reference_set
from kokoro_npu.emulation.htp import BACKEND, FP16, require_emulation
from kokoro_npu.emulation.numerics import Form, audit_numerics, check_gates, summarize
from kokoro_npu.files import sha256
from kokoro_npu.geometry import Bucket
from kokoro_npu.host.steps import crop, pad_to_bucket
from stages._config import plain, stage

REPORTS = places.REPORTS / "op_numerics"
WEIGHTS = f"{places.SHARED_WEIGHTS}.json"


@stage
def main(cfg: DictConfig) -> None:
    """Write a table to artifacts/emulation and a report to reports/op_numerics, then apply the gates."""
    require_emulation()
    small = OmegaConf.is_missing(cfg, "frames")
    frames = cfg.htp_parity.frames if small else cfg.frames
    plain_path, quantized_path = (
        (places.EMULATED_FLOAT, places.EMULATED_QUANTIZED)
        if small
        else (places.decoder(places.DECODERS, frames), places.decoder(places.QUANTIZED, frames))
    )
    encoded = sha256(places.QUANTIZED / WEIGHTS) + sha256(places.QUANTIZED / places.ENCODINGS)
    forms = [
        Form(FP16, onnx.load(plain_path), sha256(places.DECODERS / WEIGHTS)),
        Form(QUANTIZED, onnx.load(quantized_path), encoded),
    ]
    shortest = next(load_reference_set(places.REFERENCE_SET, EVALUATION))
    # Shorter than the bucket where it can be: the padding and its ratios are then heard.
    feeds = pad_to_bucket(crop(shortest.features, min(shortest.frames, frames)), Bucket(frames))
    target, settings, options = Target(**plain(cfg.target)), CompileSettings(**cfg.compile), cfg.op_numerics
    cache = places.EMULATION_CACHE / "classes"
    table = audit_numerics(forms, frames, feeds, target, settings, cache, options.max_seconds, options.processes)
    write_table(places.EMULATION / ("classes.csv" if small else f"op_numerics/{frames}.csv"), table)
    level = {"optimization_level": settings.optimization_level, "soc_model": target.soc_model, "frames": frames}
    write_report(
        REPORTS / f"{'classes' if small else frames}.json", summarize(table) | level, cfg.quantize.precision, BACKEND
    )
    check_gates(table, options.gates, f"op-numerics of {frames} frames")


if __name__ == "__main__":
    main()
