"""What the stages qai-compile and long-bucket share: one bucket's decoder to an HTP context binary and its report."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import metrics_row
from kokoro_npu.compile.backends import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.files import write_json
from kokoro_npu.weights.canonical import source_label
from stages._config import plain


def compile_bucket(cfg: DictConfig, settings: CompileSettings, artifacts: Path, reports: Path) -> None:
    """Compile the bucket ``cfg.frames`` into ``artifacts``/<frames>; its metrics go into ``reports``/<frames>.json."""
    report = compile_decoder(
        places.decoder(places.QUANTIZED, cfg.frames),
        cfg.frames,
        Spec(cfg.quantize.precision, Target(**plain(cfg.target)), settings),
        artifacts / str(cfg.frames),
    )
    weights = {"weights_source": source_label(places.WEIGHTS)}
    write_json(reports / f"{cfg.frames}.json", metrics_row(report) | weights)
    print(f"{cfg.frames} frames: " + ("compiled" if report["compiled"] else f"not compiled: {report['reason']}"))
