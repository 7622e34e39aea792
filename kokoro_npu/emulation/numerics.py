"""Numerical op audit: each distinct piece of a decoder's work alone through the HTP emulation.

A node that the compiler takes can still compute something else than ONNX says: a depthwise ConvTranspose does, and a
quantized Reciprocal above 1. So each class of :mod:`kokoro_npu.emulation.classes` is cut out of the decoder, fed with
what it sees when an utterance of the reference set is decoded, and compared with ONNX Runtime: the float graph, which
HTP runs in half precision, and the quantized one, at the finalize level that ships.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

import onnx
import pandas as pd
from tqdm import tqdm

from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.emulation.classes import OpClass, op_classes
from kokoro_npu.emulation.graph import Graph, Tensor, values
from kokoro_npu.emulation.htp import FORMS, Job, agreement_db, emulate, estimate_seconds, fingerprint
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, write_json
from kokoro_npu.graphs.cost import count_model

_NOT_MEASURED = "not measured"
_CAPTURED_BYTES = 2 << 30
"""Tensors of the decoder that are held at a time."""
_CHUNK = 8
"""Classes in one child process: it starts in two seconds, and what it has done is kept when the audit is killed."""


@dataclass(frozen=True)
class Form:
    """One form of the decoder.

    Attributes:
        name: ``fp16`` (the float graph, run in half precision) or ``quantized``.
        model: weights inside.
        made_from: tells its weights and encodings; part of the cache's key, since a class does not hold them.
    """

    name: str
    model: onnx.ModelProto
    made_from: str


def audit_numerics(
    forms: Sequence[Form],
    frames: int,
    feeds: Mapping[str, Tensor],
    target: Target,
    settings: CompileSettings,
    cache_dir: Path,
    max_seconds: float,
    processes: int,
) -> pd.DataFrame:
    """Measure every class of every form.

    Args:
        forms: the decoder's forms.
        frames: the bucket, T.
        feeds: the decoder's inputs for one utterance.
        target: the chip.
        settings: level and options that ship.
        cache_dir: keeps each class's figure: a second bucket costs seconds, and a killed audit resumes.
        max_seconds: estimated time that classes of a form which are not in the cache may take together; what is left
            is not measured, and said so.
        processes: emulations at a time, one core each.

    Returns:
        One row a class and form, the worst first: ``form``, ``op``, ``snr_db`` of the emulation against ONNX Runtime
        CPU for the same graph (200 for equal outputs) or ``error``, how many ``nodes`` the class has, the ``node`` that
        was measured, and its ``description``.
    """
    left_out = f"{_NOT_MEASURED}: the classes that no cache holds would take more than {max_seconds:.0f} s"
    run_key = fingerprint(target, settings)
    rows = []
    for form in forms:
        graph = Graph(form.model)
        keys = {one: "\n".join([one.key, form.made_from, run_key]) for one in op_classes(graph, frames)}
        classes = {one: cache_dir / f"{sha256(key.encode()).hexdigest()}.json" for one, key in keys.items()}
        missing = {one: path for one, path in classes.items() if not path.is_file()}
        _measure(form, graph, missing, feeds, target, settings, max_seconds, processes)
        for one, path in classes.items():
            figure = read_json(path) if path.is_file() else {}
            row = {"form": form.name, "op": one.op, "snr_db": None, "error": left_out} | figure
            rows.append(row | {"nodes": len(one.nodes), "node": one.nodes[0], "description": one.label})
    return pd.DataFrame(rows).sort_values(["form", "snr_db", "node"], na_position="first", ignore_index=True)


def _measure(
    form: Form,
    graph: Graph,
    missing: Mapping[OpClass, Path],
    feeds: Mapping[str, Tensor],
    target: Target,
    settings: CompileSettings,
    max_seconds: float,
    processes: int,
) -> None:
    """Measure the classes that no cache holds, the cheap ones first, as far as the time allows."""
    parts = {one: one.model(graph) for one in missing}
    seconds = {one: estimate_seconds(count_model(part), form.name) for one, part in parts.items()}
    cheap_first = sorted(missing, key=lambda one: seconds[one])
    totals = accumulate(seconds[one] for one in cheap_first)
    chosen = [one for one, total in zip(cheap_first, totals, strict=True) if total / processes <= max_seconds]

    def run(chunk: Sequence[tuple[OpClass, dict[str, Tensor]]]) -> int:
        answers = emulate([Job(parts[one], own) for one, own in chunk], target, settings)
        for (one, own), answer in zip(chunk, answers, strict=True):
            level = None if answer.error else agreement_db(values(parts[one], own), answer.outputs)
            write_json(missing[one], {"snr_db": level, "error": answer.error})
        return len(chunk)

    with (
        ThreadPoolExecutor(processes) as pool,
        tqdm(total=len(chosen), desc=f"{form.name} ops", unit="class", disable=not chosen) as bar,
    ):
        for group in _groups(graph, chosen[::-1]):  # the dear ones first, so that the processes end together
            inputs = values(form.model, feeds, {name for one in group for name in one.inputs})
            work = [(one, {name: inputs[name] for name in one.inputs}) for one in group]
            step = -(-len(work) // _CHUNK)
            for done in pool.map(run, (work[at::step] for at in range(step))):
                bar.update(done)


def _groups(graph: Graph, chosen: Sequence[OpClass]) -> Iterator[list[OpClass]]:
    """Classes whose inputs are captured in one run of the decoder: all of a small bucket's, few of a long one's."""
    group: list[OpClass] = []
    held = 0
    for one in chosen:
        size = sum(4 * math.prod(graph.shape(name)) for name in one.inputs)
        if group and held + size > _CAPTURED_BYTES:
            yield group
            group, held = [], 0
        group.append(one)
        held += size
    if group:
        yield group


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """The table's figures, flat: classes, the worst dB and its node by form, classes that failed or were left out."""
    report: dict[str, Any] = {}
    for form in FORMS:
        rows = table[table["form"] == form]
        measured = rows[rows["snr_db"].notna()]
        worst = measured.iloc[0] if len(measured) else None
        report |= {
            f"{form}_classes": len(rows),
            f"{form}_classes_not_measured": len(rows) - len(measured),
            f"{form}_op_snr_db_min": None if worst is None else float(worst["snr_db"]),
            f"{form}_op_worst": "" if worst is None else f"{worst['node']} ({worst['op']})",
        }
    return report


def check_gates(table: pd.DataFrame, gates: Mapping[str, float], where: str) -> None:
    """Require every class that was measured to agree with ONNX Runtime.

    Args:
        table: of :func:`audit_numerics`.
        gates: ``fp16_snr_db_min`` and ``quantized_snr_db_min``.
        where: names the bucket in the error.

    Raises:
        KokoroNpuError: the worst class below its form's bound, or one that did not run, with its node.
    """
    for form in FORMS:
        rows = table[table["form"] == form]
        failed = rows[rows["snr_db"].isna() & ~rows["error"].str.startswith(_NOT_MEASURED)]
        if len(failed):
            first = failed.iloc[0]
            raise KokoroNpuError(
                f"{where}: {first['node']} ({first['op']}, {form}) does not run in the HTP emulation: {first['error']}"
            )
        bound = gates[f"{form}_snr_db_min"]
        below = rows[rows["snr_db"] < bound]
        if len(below):
            worst = below.iloc[0]
            more = f"; {len(below) - 1} more classes are below it" if len(below) > 1 else ""
            raise KokoroNpuError(
                f"{where}: HTP computes {worst['node']} ({worst['op']}, {form}) to {worst['snr_db']:.1f} dB of ONNX "
                f"Runtime, below {form}_snr_db_min {bound:g}: {worst['description']} ({worst['nodes']} nodes){more}"
            )
