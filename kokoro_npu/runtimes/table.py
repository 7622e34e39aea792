"""One table of what each runtime makes of the decoder: bucket by bucket and precision by precision.

The runtimes are those that have reports (:func:`kokoro_npu.runtimes.compare.export_decoder` writes them):
``<runtime>/<frames>.json`` of each bucket. There may be others, such as ``<runtime>/w8a16.json``, which stand beside
the smallest bucket, and ``<runtime>/parts.json`` of the models before the decoder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kokoro_npu.build.reports import read_report
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.runtimes.measure import REFERENCE

COLUMNS = (
    "bytes",
    "snr_db_min",
    "waveform_corr_min",
    "magspec_corr_min",
    "logmel_mae_max",
    "nan_samples",
    "time_ratio",
    "memory_bytes",
    "ops",
    "ops_accelerated",
    "partitions",
)
"""Figures of a row, behind ``<precision>_`` in the runtimes' reports."""

_ALL_PARTS = ", all three parts"
"""The duration and prosody models and the decoder: their size, and the worst of their outputs."""

_PUBLISHED = [
    {
        "runtime": "litert (published)",
        "frames": 512,
        "precision": "fp32",
        "bytes": 236_000_000,
        "waveform_corr_min": 0.98,
        "magspec_corr_min": 0.9994,
    },
    {
        "runtime": f"litert{_ALL_PARTS} (published)",
        "frames": 512,
        "precision": "fp32",
        "bytes": 91_000_000 + 37_000_000 + 236_000_000,
    },
]
"""What the model card of mlboydaisuke/Kokoro-82M-LiteRT says."""


def collect(reports: Path, parity: Path, frames: Sequence[int]) -> pd.DataFrame:
    """The table over the runtimes' reports.

    ONNX Runtime stands beside them with its SNR from the stage parity-eval, and the memory that it took beside one of
    them; its time is 1 by definition.

    Args:
        reports: directory of the runtimes' reports.
        parity: directory of the reports of the stage parity-eval.
        frames: the build's buckets.

    Returns:
        One row a runtime, bucket and precision; what a runtime cannot tell is empty.

    Raises:
        KokoroNpuError: there is no report, or a runtime lacks that of a bucket; the line names the pipeline.
    """
    runtimes = sorted(path.name for path in reports.glob("*/"))
    if not runtimes:
        raise KokoroNpuError(f"{reports} holds no runtime's reports: run dvc repro pipelines/<runtime>/dvc.yaml")
    rows: list[dict[str, Any]] = []
    for size in sorted(frames):
        found = {runtime: _read(reports, runtime, size) for runtime in runtimes}
        memory = (report.get(f"{REFERENCE}_memory_bytes") for report in found.values())
        onnxruntime = {
            "snr_db_min": read_report(parity / f"{size}.json")["fp32_snr_db_min"],
            "time_ratio": 1.0,
            "memory_bytes": next(filter(None, memory), None),
        }
        rows.append({"runtime": "onnxruntime", "frames": size, "precision": "fp32", **onnxruntime})
        for runtime, report in found.items():
            rows += _rows(runtime, report)
            if size == min(frames):
                others = [path for path in sorted((reports / runtime).glob("*.json")) if not path.stem.isdecimal()]
                for path in others:
                    other = read_report(path)
                    rows += _all_parts(runtime, report, other) if path.stem == "parts" else _rows(runtime, other)
    return pd.DataFrame([*rows, *_PUBLISHED], columns=["runtime", "frames", "precision", *COLUMNS])


def _read(reports: Path, runtime: str, frames: int) -> dict[str, Any]:
    path = reports / runtime / f"{frames}.json"
    if not path.is_file():
        raise KokoroNpuError(f"{path} does not exist: run dvc repro pipelines/{runtime}/dvc.yaml")
    return read_report(path)


def _rows(runtime: str, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for precision in report["precision"].split("+"):
        values = {column: report.get(f"{precision}_{column}") for column in COLUMNS}
        # Only macOS can tell what an accelerator takes; elsewhere, what is narrow enough for it.
        values["ops_accelerated"] = report.get(f"{precision}_ops_within_ane_width", values["ops_accelerated"])
        rows.append({"runtime": runtime, "frames": report["frames"], "precision": precision, **values})
    return rows


def _all_parts(runtime: str, decoder: Mapping[str, Any], parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for precision in parts["precision"].split("+"):
        floors = [report[f"{precision}_snr_db_min"] for report in (decoder, parts)]
        sizes = [parts[f"{precision}_{part}_bytes"] for part in ("duration", "prosody")]
        figures = {"bytes": decoder[f"{precision}_bytes"] + sum(sizes), "snr_db_min": min(floors)}
        row = {"runtime": runtime + _ALL_PARTS, "frames": decoder["frames"], "precision": precision}
        rows.append(row | figures)
    return rows


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """Flat: each runtime's and precision's worst SNR and time ratio, the sizes of all parts, the fastest on this CPU.

    A time ratio is the median over the buckets, which forgives a bucket that was timed on a busy machine, and
    ``fastest`` the runtime and precision of the least; ONNX Runtime itself counts with 1.
    """
    whole = table["runtime"].str.endswith(_ALL_PARTS)
    report: dict[str, Any] = {
        f"{row['runtime'].removesuffix(_ALL_PARTS)}_three_parts_{row['precision']}_bytes": int(row["bytes"])
        for _, row in table[whole].iterrows()
    }
    measured = table[~whole].dropna(subset=["snr_db_min"])
    groups = measured.groupby(measured["runtime"] + "_" + measured["precision"])
    report |= {f"{name}_snr_db_min": round(float(rows["snr_db_min"].min()), 3) for name, rows in groups}
    ratios = groups["time_ratio"].median().dropna()
    report |= {f"{name}_time_ratio": round(float(ratio), 3) for name, ratio in ratios.items()}
    report["fastest"] = str(ratios.idxmin())
    return report
