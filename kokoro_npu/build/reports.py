"""Reports of a build: written with their provenance, read with errors of one line."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kokoro_npu.build.places import WEIGHTS
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic, read_json, write_json
from kokoro_npu.versions import TOOLS, flat_versions
from kokoro_npu.weights.canonical import source_label

if TYPE_CHECKING:
    import pandas as pd


def write_report(
    path: Path | str, report: Mapping[str, Any], precision: str, backend: str, tools: Iterable[str] = ()
) -> None:
    """Write a flat report as JSON, with the weights' source, the precision, the backend that ran, and tool versions.

    Args:
        path: of the report.
        report: its figures, by name.
        precision: of the models that it speaks of.
        backend: where they ran.
        tools: distributions whose versions it states beside those that every report does.
    """
    source = {"weights_source": source_label(WEIGHTS), "precision": precision, "backend": backend}
    write_json(path, {**report, **source, **flat_versions([*TOOLS, *tools])})


def write_table(path: Path | str, table: "pd.DataFrame") -> None:
    """Write a table as CSV, floats with six digits, atomically."""
    with atomic(path) as tmp:
        table.to_csv(tmp, index=False, float_format="%.6g")


def read_report(path: Path | str) -> dict[str, Any]:
    """Read a report.

    Raises:
        KokoroNpuError: it is missing, no JSON, or no mapping.
    """
    try:
        report = read_json(path)
    except FileNotFoundError:
        raise KokoroNpuError(f"{path} does not exist; `dvc repro` writes it") from None
    except ValueError as error:
        raise KokoroNpuError(f"{path} is not JSON ({error}); delete it and run `dvc repro`") from None
    if not isinstance(report, dict):
        raise KokoroNpuError(f"{path} holds no mapping; delete it and run `dvc repro`")
    return report


_LONGEST_TEXT = 16


def metrics_row(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report as a metrics file: what is longer than a few words is cut, because ``dvc metrics diff`` is a table.

    A reason such as ``too wide: tensor noise is …`` leaves the words before its colon. The whole text stays where
    the report's stage keeps it (``why.txt`` among its outputs), and a reason without short words points there.
    """
    return {key: _short(value) if key.endswith("reason") else value for key, value in report.items()}


def _short(reason: str) -> str:
    head = reason.partition(":")[0]
    return head if len(head) <= _LONGEST_TEXT else "see why.txt"
