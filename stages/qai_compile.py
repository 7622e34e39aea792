"""Stage qai-compile@<frames>: the decoder as an HTP context binary, or why there is none."""

from omegaconf import DictConfig

from kokoro_npu.build import places
from kokoro_npu.build.reports import metrics_row, write_report
from kokoro_npu.compile.backends import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/compiled/<frames> and reports/compile/<frames>.json."""
    settings = CompileSettings(**cfg.compile, aihub=plain(cfg.aihub))
    report = compile_decoder(
        places.decoder(places.QUANTIZED, cfg.frames),
        cfg.frames,
        Spec(cfg.quantize.precision, Target(**plain(cfg.target)), settings),
        places.COMPILED / str(cfg.frames),
    )
    path = places.REPORTS / f"compile/{cfg.frames}.json"
    write_report(path, metrics_row(report), cfg.quantize.precision, report["backend"])
    print(f"{cfg.frames} frames: " + ("compiled" if report["compiled"] else f"not compiled: {report['reason']}"))


if __name__ == "__main__":
    main()
