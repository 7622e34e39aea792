"""The reviewer's page: one self-contained HTML file, its short form for pull requests, and charts as files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from kokoro_npu.build.reports import read_report
from kokoro_npu.files import atomic
from kokoro_npu.geometry import Bucket
from kokoro_npu.page import baseline, charts, figures, sound
from kokoro_npu.page.figures import Figure, Reports, text
from kokoro_npu.runtimes.shown import cells

_TEMPLATES = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Row:
    """One figure over the buckets.

    Attributes:
        label: its name.
        gate: the bound as text, empty where none is.
        cells: text of each bucket.
        held: for each bucket whether the gate holds; None without a gate or a figure.
    """

    label: str
    gate: str
    cells: tuple[str, ...]
    held: tuple[bool | None, ...]


@dataclass(frozen=True)
class OpTable:
    """Ops of the decoders of some buckets, which agree in all counts.

    Attributes:
        frames: the buckets.
        rows: one an op: ``op, status, fp32, quantized, taken, refused`` (counts of nodes).
    """

    frames: tuple[int, ...]
    rows: tuple[dict[str, Any], ...]


def write_page(
    out_dir: Path | str,
    *,
    frames: Sequence[int],
    precision: str,
    gates: Mapping[str, float],
    audit_dir: Path | str,
    compiled_dir: Path | str,
    parity_dir: Path | str,
    revision: str,
) -> None:
    """Write ``index.html``, ``index.md`` and ``plots/*.svg`` into the directory of the reports.

    Args:
        out_dir: holds ``{parity,audit,compile,profile}/<frames>.json`` and ``summary.json``; of an optional pipeline
            ``runtimes.csv`` and ``runtimes.json``, which are shown if they are there.
        frames: the build's buckets.
        precision: of the quantized decoders.
        gates: name to bound, those of the stage parity-eval.
        audit_dir: of the stage op-audit: ``<frames>/{float,quantized}_ops.csv``.
        compiled_dir: of the stage qai-compile: ``<frames>/why.txt`` where there is no binary.
        parity_dir: of the stage parity-eval: tables and audio.
        revision: the commit whose reports are the baseline.

    Raises:
        KokoroNpuError: a report is missing, or git knows no such revision.
    """
    out_dir = Path(out_dir)
    reports = {kind: {size: read_report(out_dir / kind / f"{size}.json") for size in frames} for kind in figures.KINDS}
    before = baseline.read(out_dir.parent, revision, out_dir.name)
    plots = draw(reports, precision, gates)
    for name, svg in plots.items():
        charts.write(out_dir / "plots" / f"{name}.svg", svg)
    facts = {
        "precision": precision,
        "buckets": [Bucket(size) for size in frames],
        "reports": reports,
        "summary": read_report(out_dir / "summary.json"),
        "revision": revision,
        "has_baseline": bool(before),
        "worse": baseline.worse(before, reports, precision) if before else [],
        "other_build": baseline.other_build(before, reports) if before else [],
        "parity": table(figures.PARITY, reports, precision, gates),
        "audit": table(figures.AUDIT, reports, precision, gates),
        "compile": table(figures.COMPILE, reports, precision, gates),
        "profile": table((*_TIMES, *figures.PROFILE), reports, precision, gates),
        "why": _reasons(audit_dir, frames) + _reasons(compiled_dir, frames),
        "ops": op_tables(audit_dir, frames),
        "samples": sound.samples(parity_dir, list(frames), precision),
        "plots": plots,
        "runtimes": _runtimes(out_dir),
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name in ("index.html", "index.md"):
        with atomic(out_dir / name) as tmp:
            tmp.write_text(environment.get_template(f"{name}.j2").render(facts), encoding="utf-8")


def _runtimes(out_dir: Path) -> dict[str, Any] | None:
    """The table of runtimes and who made it, if there is one."""
    path = out_dir / "runtimes.csv"
    if not path.is_file():
        return None
    shown = cells(pd.read_csv(path))
    return {
        "headings": list(shown),
        "rows": list(zip(*shown.values(), strict=True)),
        "made_by": read_report(path.with_suffix(".json")),
    }


# Shown, but not compared with the baseline: seconds of another machine say nothing.
_TIMES = (
    Figure("profile", "rtf_p50", "fp32: time ÷ audio (RTF)"),
    Figure("profile", "quantized_rtf_p50", "{precision}: time ÷ audio (RTF)"),
    Figure("profile", "torch_rtf_p50", "PyTorch: time ÷ audio (RTF)"),
)


def table(
    rows: Sequence[Figure], reports: Reports, precision: str, gates: Mapping[str, float] | None = None
) -> list[Row]:
    """Figures over the buckets, with their gates."""
    return [_row(figure, reports, precision, gates or {}) for figure in rows]


def _row(figure: Figure, reports: Reports, precision: str, gates: Mapping[str, float]) -> Row:
    bound = gates.get(figure.gate)
    values = [figure.of(report) for report in reports[figure.kind].values()]
    sign = "≥" if figure.better > 0 else "≤"
    label, unit = figure.label.format(precision=precision), figure.unit
    if unit == "dB":  # once a row, so that the columns fit a phone
        label, unit = f"{label}, dB", ""
    return Row(
        label=label,
        gate="" if bound is None else f"{sign} {bound:g}",
        cells=tuple(text(value, unit) for value in values),
        held=tuple(None if bound is None or v is None else (v - bound) * figure.better >= 0 for v in values),
    )


def draw(reports: Reports, precision: str, gates: Mapping[str, float]) -> dict[str, str]:
    """The charts, name to SVG: fidelity, size and time of each bucket."""
    sizes = list(reports["parity"])
    rows = [f"{size} ({Bucket(size).seconds:g} s)" for size in sizes]

    def values(kind: str, key: str, scale: float = 1) -> list[float | None]:
        found = (reports[kind][size].get(key) for size in sizes)
        return [None if value is None or value == 0 else value / scale for value in found]

    variants = {"torch": "torch_snr_db_min", "fp32": "fp32_snr_db_min", precision: "quantized_snr_db_min"}
    snr = {label: values("parity", key) for label, key in variants.items()}
    bounds = {label: gates[key] for label, key in variants.items() if key in gates}
    size = {
        "fp32 weights": values("profile", "weight_bytes", 1e6),
        f"{precision} weights": values("profile", "quantized_weight_bytes", 1e6),
        "context binary": values("compile", "binary_bytes", 1e6),
    }
    time = {
        "PyTorch": values("profile", "torch_rtf_p50"),
        "fp32": values("profile", "rtf_p50"),
        precision: values("profile", "quantized_rtf_p50"),
    }
    backends = sorted({str(report["backend"]) for report in reports["profile"].values()})
    return {
        "snr": charts.bars("snr", rows, snr, "SNR in dB, worst utterance; red: gate", gates=bounds),
        "size": charts.bars("size", rows, size, "MB"),
        "time": charts.bars("time", rows, time, f"time ÷ audio on {', '.join(backends)}"),
    }


def op_tables(audit_dir: Path | str, frames: Sequence[int]) -> list[OpTable]:
    """Op tables of the buckets; buckets with the same counts share one."""
    found: dict[tuple[tuple[tuple[str, Any], ...], ...], list[int]] = {}
    for size in frames:
        directory = Path(audit_dir) / str(size)
        plain, quantized = (
            pd.read_csv(directory / f"{kind}_ops.csv").set_index("op") for kind in ("float", "quantized")
        )
        rows = []
        for op in sorted({*plain.index, *quantized.index}):
            sides = [side.loc[op] for side in (plain, quantized) if op in side.index]
            handed, taken = (sum(int(s[column]) for s in sides) for column in ("nodes_at_partition", "nodes_on_npu"))
            counts = [int(s.loc[op, "nodes_in_file"]) if op in s.index else 0 for s in (plain, quantized)]
            row = {"op": op, "status": sides[0]["seed0_status"], "fp32": counts[0], "quantized": counts[1]}
            rows.append(row | {"taken": taken, "refused": handed - taken})
        found.setdefault(tuple(tuple(row.items()) for row in rows), []).append(size)
    return [OpTable(tuple(sizes), tuple(dict(row) for row in rows)) for rows, sizes in found.items()]


def _reasons(directory: Path | str, frames: Sequence[int]) -> list[str]:
    """What the stages left in ``<frames>/why.txt``, with the bucket in front."""
    found = ((size, Path(directory) / str(size) / "why.txt") for size in frames)
    return [f"{size} frames: {path.read_text(encoding='utf-8').strip()}" for size, path in found if path.is_file()]
