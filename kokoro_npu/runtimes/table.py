"""One table of what each runtime makes of the decoder: bucket by bucket and precision by precision."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json
from kokoro_npu.runtimes.compare import REFERENCE

MEASURED = ("litert", "executorch", "coreml")
"""Runtimes in the order of the table; each has reports ``<reports>/<runtime>/<frames>.json``."""

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

# Seed 2's model card: three float32 files for 512 frames; nothing else is published.
_SEED_2: list[dict[str, Any]] = [
    {
        "runtime": "litert (seed 2, published)",
        "frames": 512,
        "precision": "fp32",
        "bytes": 236_000_000,
        "waveform_corr_min": 0.98,
        "magspec_corr_min": 0.9994,
    },
    {
        "runtime": "litert, all three parts (seed 2)",
        "frames": 512,
        "precision": "fp32",
        "bytes": 91_000_000 + 37_000_000 + 236_000_000,
    },
]

_THREE_PARTS = "litert, all three parts"
"""The duration and prosody models and the decoder, as seed 2 has them: their size, and the worst of their outputs."""


def collect(reports: Path, frames: Sequence[int]) -> pd.DataFrame:
    """The table over the runtimes' reports.

    ONNX Runtime stands beside them with its SNR from the stage parity-eval and its memory from LiteRT's run; its time
    is 1 by definition.

    Args:
        reports: directory of the reports.
        frames: the build's buckets.

    Returns:
        One row a runtime, bucket and precision; what a runtime cannot tell is empty.

    Raises:
        KokoroNpuError: a report is missing (the line names its stage), or lacks a precision that others have.
    """
    rows: list[dict[str, Any]] = []
    for size in frames:
        for runtime in MEASURED:
            report = _read(reports / runtime / f"{size}.json", runtime, size)
            precisions = report["precision"].split("+")
            if runtime == MEASURED[0]:
                parity = _read(reports / "parity" / f"{size}.json", "parity-eval", size)
                rows.append(
                    {
                        "runtime": "onnxruntime",
                        "frames": size,
                        "precision": "fp32",
                        "snr_db_min": parity["fp32_snr_db_min"],
                        "time_ratio": 1.0,
                        "memory_bytes": report[f"{REFERENCE}_memory_bytes"],
                    }
                )
            rows += [_row(runtime, size, precision, report, precision) for precision in precisions]
            if runtime == MEASURED[0] and size == min(frames):
                integer = _read(reports / runtime / "w8a16.json", runtime, size)
                rows.append(_row(runtime, size, "w8a16", integer, "w8a16"))
                parts = _read(reports / runtime / "parts.json", runtime, size)
                rows += [_three_parts(size, precision, report, parts) for precision in precisions]
    return pd.DataFrame([*rows, *_SEED_2], columns=["runtime", "frames", "precision", *COLUMNS])


def _read(path: Path, runtime: str, frames: int) -> dict[str, Any]:
    if not path.is_file():
        command = f"pipelines/{runtime}/dvc.yaml" if runtime in MEASURED else runtime
        raise KokoroNpuError(f"{path} does not exist: run dvc repro {command} (bucket {frames})")
    report: dict[str, Any] = read_json(path)
    return report


def _row(runtime: str, frames: int, precision: str, report: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    values = {column: report.get(f"{prefix}_{column}") for column in COLUMNS}
    # Only macOS can tell what an accelerator takes; here, what is narrow enough for it.
    values["ops_accelerated"] = report.get(f"{prefix}_ops_within_ane_width", values["ops_accelerated"])
    if values["snr_db_min"] is None:
        raise KokoroNpuError(
            f"the report of {runtime} at {frames} frames holds no {prefix}_snr_db_min: rerun its stage"
        )
    return {"runtime": runtime, "frames": frames, "precision": precision, **values}


def _three_parts(frames: int, precision: str, decoder: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    reports = [
        {name: value for name, value in of.items() if name.startswith(f"{precision}_")} for of in (decoder, parts)
    ]
    floors = [value for of in reports for name, value in of.items() if name.endswith("_snr_db_min")]
    size = sum(
        value for of in reports for name, value in of.items() if name.endswith("_bytes") and "memory" not in name
    )
    return {"runtime": _THREE_PARTS, "frames": frames, "precision": precision, "bytes": size, "snr_db_min": min(floors)}


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """Flat: each runtime's and precision's worst SNR, LiteRT's sizes, the fastest runtime on this CPU over all buckets.

    ``fastest`` is the runtime and precision with the least median of time ratios over the buckets, which forgives a
    bucket that was timed on a busy machine; ONNX Runtime itself counts with 1.
    """
    whole = table["runtime"] == _THREE_PARTS
    report: dict[str, Any] = {
        f"litert_three_parts_{row['precision']}_bytes": int(row["bytes"]) for _, row in table[whole].iterrows()
    }
    measured = table[~whole].dropna(subset=["snr_db_min"])
    for (runtime, precision), rows in measured.groupby(["runtime", "precision"]):
        report[f"{runtime}_{precision}_snr_db_min"] = round(float(rows["snr_db_min"].min()), 3)
    timed = measured.dropna(subset=["time_ratio"]).copy()
    for (runtime, precision), rows in timed.groupby(["runtime", "precision"]):
        report[f"{runtime}_{precision}_time_ratio"] = round(float(rows["time_ratio"].median()), 3)
    ratios = {name: value for name, value in report.items() if name.endswith("_time_ratio")}
    report["fastest"] = min(ratios, key=ratios.__getitem__).removesuffix("_time_ratio")
    return report
