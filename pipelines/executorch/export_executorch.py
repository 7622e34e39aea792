"""Stage export-executorch@<frames>: the float decoder of one bucket for ExecuTorch on XNNPACK, judged and timed."""

from pathlib import Path

from omegaconf import DictConfig

from kokoro_npu.evaluate.parity import check_gates
from kokoro_npu.runtimes import executorch
from kokoro_npu.runtimes.compare import Case, Settings, compare, prefixed, save
from stages._config import plain, stage

ARTIFACTS = Path("artifacts")


@stage
def main(cfg: DictConfig) -> None:
    """Write the .pte file and the table in artifacts/executorch, and reports/executorch/<frames>.json."""
    case = Case.load(cfg.frames, ARTIFACTS, cfg.runtimes.utterances)
    path = ARTIFACTS / f"executorch/kokoro_decoder_{cfg.frames}.pte"
    made = executorch.convert(case.module, case.example, path)
    settings = Settings(cfg.runtimes.threads, cfg.runtimes.runs)
    table, report = compare({"fp32": (executorch.BACKEND, path)}, case.onnx, case.recorded, case.bucket, settings)
    save("executorch", executorch.TOOLS, case, table, report | prefixed("fp32", made))
    check_gates(table, plain(cfg.runtimes.gates.executorch), f"export-executorch@{cfg.frames}")


if __name__ == "__main__":
    main()
