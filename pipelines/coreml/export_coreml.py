"""Stage export-coreml@<frames>: the decoder of one bucket as ML programs, judged by what their ops compute."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.evaluate.parity import check_gates
from kokoro_npu.runtimes import coreml
from kokoro_npu.runtimes.compare import Case, save
from stages._config import plain, stage

ARTIFACTS = Path("artifacts")


@stage
def main(cfg: DictConfig) -> None:
    """Write both packages and the table in artifacts/coreml, and reports/coreml/<frames>.json."""
    case = Case.load(cfg.frames, ARTIFACTS, cfg.runtimes.interpreted)
    paths = {
        precision: ARTIFACTS / f"coreml/kokoro_decoder_{cfg.frames}_{precision}.mlpackage"
        for precision in coreml.PRECISIONS
    }
    for precision, path in paths.items():
        coreml.convert(case.module, case.example, list(case.bucket.output_shapes), path, precision)
    table, report = coreml.interpret(paths, case.recorded, case.bucket)
    save("coreml", coreml.TOOLS, case, table, report)
    where = f"export-coreml@{cfg.frames}"
    coreml.check_range(report, where)
    check_gates(table, plain(cfg.runtimes.gates.coreml), where)


if __name__ == "__main__":
    main()
