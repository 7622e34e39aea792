"""Stage op-audit@<frames>: what the decoder is made of, and what of it the NPU takes."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.audit.decoder import audit_decoder
from kokoro_npu.build import places
from kokoro_npu.build.reports import metrics_row, write_report
from kokoro_npu.compile.options import CompileSettings, Target
from stages._config import plain, stage


@stage
def main(cfg: DictConfig) -> None:
    """Write artifacts/audit/<frames> and reports/audit/<frames>.json."""
    report = audit_decoder(
        places.decoder(places.DECODERS, cfg.frames),
        places.decoder(places.QUANTIZED, cfg.frames),
        cfg.frames,
        cfg.quantize.precision,
        Target(**plain(cfg.target)),
        CompileSettings(**cfg.compile),
        places.AUDIT / str(cfg.frames),
        Path(cfg.audit.op_table),
    )
    path = places.REPORTS / f"audit/{cfg.frames}.json"
    write_report(path, metrics_row(report), cfg.quantize.precision, report["backend"])
    if report["placed"]:
        print(f"{cfg.frames} frames: {report['nodes_on_npu']} of {report['nodes']} nodes on the NPU")
    else:
        print(f"{cfg.frames} frames: placement not known: {report['reason']}")


if __name__ == "__main__":
    main()
