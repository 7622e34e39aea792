"""The reviewer's page: one self-contained HTML file, its short form for pull requests, and charts as files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd

from kokoro_npu.build import places
from kokoro_npu.build.reports import read_report
from kokoro_npu.evaluate.gates import GateVerdict, judge
from kokoro_npu.files import atomic
from kokoro_npu.geometry import Bucket
from kokoro_npu.page import baseline, charts, figures, sound
from kokoro_npu.page.figures import Figure, Reports, text
from kokoro_npu.runtimes.shown import cells

_TEMPLATES = Path(__file__).parent / "data"

# Shown, but not compared with the baseline: seconds of another machine say nothing.
_TIMES = (
    Figure("profile", "rtf_p50", "fp32: time ÷ audio (RTF)"),
    Figure("profile", "quantized_rtf_p50", "{precision}: time ÷ audio (RTF)"),
    Figure("profile", "torch_rtf_p50", "PyTorch: time ÷ audio (RTF)"),
)

Verdicts = Mapping[str, Mapping[int, GateVerdict]]
"""What each gate says, by its name and the bucket's frames."""


class FigureRow(NamedTuple):
    """One figure over the buckets: its name, its gate's bound as text, each bucket's text and whether the gate holds.

    The bound is empty, and ``held`` None, where there is no gate.
    """

    label: str
    gate: str
    cells: list[str]
    held: list[bool | None]


def write_page(
    root: Path, frames: Sequence[int], precision: str, gates: Mapping[str, float], fill_min: float, revision: str
) -> None:
    """Write ``index.html``, ``index.md`` and ``plots/*.svg`` into the directory of the reports.

    Args:
        root: where the stages run; reports, tables, audio and reasons lie where :mod:`kokoro_npu.build.places` says.
            Of an optional pipeline ``reports/runtimes.csv`` is shown if it is there.
        frames: the build's buckets.
        precision: of the quantized decoders.
        gates: name to bound, those of the stage parity-eval.
        fill_min: of the bucket, for the gates on the quantized decoder.
        revision: the commit whose reports are the baseline.

    Raises:
        KokoroNpuError: a report is missing, or git knows no such revision.
    """
    out_dir, parity_dir, audit_dir = root / places.REPORTS, root / places.PARITY, root / places.AUDIT
    reports = {kind: {size: read_report(out_dir / kind / f"{size}.json") for size in frames} for kind in figures.KINDS}
    tables = {size: pd.read_csv(parity_dir / f"{size}.csv") for size in frames}
    verdicts = {
        gate: {size: judge(table, gate, bound, fill_min) for size, table in tables.items()}
        for gate, bound in gates.items()
    }
    before = baseline.read(root, revision, str(places.REPORTS))
    plots = draw(reports, precision, gates, verdicts)
    for name, svg in plots.items():
        with atomic(out_dir / f"plots/{name}.svg") as tmp:
            tmp.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n', encoding="utf-8")

    def rows(shown: Iterable[Figure]) -> list[FigureRow]:
        return [_row(figure, reports, precision, gates, verdicts) for figure in shown]

    facts = {
        "precision": precision,
        "fill_min": fill_min,
        "buckets": [Bucket(size) for size in frames],
        "reports": reports,
        "summary": read_report(out_dir / "summary.json"),
        "revision": revision,
        "has_baseline": bool(before),
        "worse": baseline.worse(before, reports, precision) if before else [],
        "other_build": baseline.other_build(before, reports) if before else [],
        "parity": rows(dict.fromkeys((*figures.PARITY, *(figures.GATED[gate] for gate in gates)))),
        "audit": rows(figures.AUDIT),
        "compile": rows(figures.COMPILE),
        "profile": rows((*_TIMES, *figures.PROFILE)),
        "why": _reasons(audit_dir, frames) + _reasons(root / places.COMPILED, frames),
        "ops": op_tables(audit_dir, frames),
        "samples": sound.samples(parity_dir, tables, precision),
        "plots": plots,
        "runtimes": _runtimes(root / places.RUNTIMES.with_suffix(".csv")),
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


def _runtimes(path: Path) -> dict[str, Any] | None:
    """The table of runtimes and who made it, if there is one."""
    if not path.is_file():
        return None
    shown = cells(pd.read_csv(path))
    made_by = read_report(path.with_suffix(".json"))
    return {"headings": list(shown), "rows": list(zip(*shown.values(), strict=True)), "made_by": made_by}


def _row(figure: Figure, reports: Reports, precision: str, gates: Mapping[str, float], verdicts: Verdicts) -> FigureRow:
    label, unit = figure.label.format(precision=precision), figure.unit
    if unit == "dB":  # once a row, so that the columns fit a phone
        label, unit = f"{label}, dB", ""
    values = [text(figure.of(report), unit) for report in reports[figure.kind].values()]
    if figure.key not in gates:
        return FigureRow(label, "", values, [None] * len(values))
    judged = verdicts[figure.key].values()
    shown = [text(verdict.figure, unit) for verdict in judged]
    return FigureRow(
        label,
        f"{'≥' if figure.better > 0 else '≤'} {gates[figure.key]:g}",
        [one if every in (one, text(None)) else f"{one} ({every})" for one, every in zip(shown, values, strict=True)],
        [verdict.held for verdict in judged],
    )


def draw(reports: Reports, precision: str, gates: Mapping[str, float], verdicts: Verdicts) -> dict[str, str]:
    """The charts, name to SVG: fidelity, size and time of each bucket."""
    sizes = list(reports["parity"])
    rows = [f"{size} ({Bucket(size).seconds:g} s)" for size in sizes]

    def values(kind: str, key: str, scale: float = 1) -> list[float | None]:
        found = (reports[kind][size].get(key) for size in sizes)
        return [None if value is None or value == 0 else value / scale for value in found]

    def judged(key: str) -> list[float | None]:
        return [verdicts[key][size].figure for size in sizes] if key in verdicts else values("parity", key)

    variants = {"torch": "torch_snr_db_min", "fp32": "fp32_snr_db_min", precision: "quantized_snr_db_min"}
    snr = {label: judged(key) for label, key in variants.items()}
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


def op_tables(audit_dir: Path, frames: Sequence[int]) -> list[dict[str, Any]]:
    """Counts of nodes by op; buckets with the same counts share a table.

    Returns:
        ``frames`` of the buckets, and ``rows``: ``op, status, fp32, quantized, taken, refused``.
    """
    found: list[dict[str, Any]] = []
    for size in frames:
        sides = pd.concat(
            pd.read_csv(audit_dir / f"{size}/{file}_ops.csv").assign(**{form: lambda t: t["nodes_in_file"]})
            for file, form in (("float", "fp32"), ("quantized", "quantized"))
        )
        sums = sides.rename(columns={"nodes_on_npu": "taken"}).groupby("op").sum(numeric_only=True).astype(int)
        sums["refused"] = sums["nodes_at_partition"] - sums["taken"]
        sums["status"] = sides.groupby("op")["listed_status"].first()
        rows = sums.reset_index().to_dict("records")
        same = next((table for table in found if table["rows"] == rows), None)
        if same:
            same["frames"].append(size)
        else:
            found.append({"frames": [size], "rows": rows})
    return found


def _reasons(directory: Path, frames: Sequence[int]) -> list[str]:
    """What the stages left in ``<frames>/why.txt``, with the bucket in front."""
    found = ((size, directory / str(size) / places.WHY) for size in frames)
    return [f"{size} frames: {path.read_text(encoding='utf-8').strip()}" for size, path in found if path.is_file()]
