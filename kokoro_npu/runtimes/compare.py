"""A bucket's decoder on one runtime: judged against PyTorch, timed beside ONNX Runtime, reported, gated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from kokoro_npu.build import places
from kokoro_npu.build.reports import write_report, write_table
from kokoro_npu.corpus.reference_set import EVALUATION, ReferenceUtterance, load_reference_set
from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.evaluate.gates import worst_figures
from kokoro_npu.evaluate.parity import evaluate, fitting
from kokoro_npu.geometry import Bucket
from kokoro_npu.host.steps import pad_to_bucket
from kokoro_npu.model.decoder import StaticDecoder
from kokoro_npu.runtimes.measure import ONNXRUNTIME, REFERENCE, Engine, Loader, take_turns
from kokoro_npu.weights.kmodel import load_kmodel

Judged = tuple[pd.DataFrame, dict[str, Any]]
"""Rows of :func:`kokoro_npu.evaluate.parity.evaluate`, one variant a precision, and a flat report of the whole."""


@dataclass(frozen=True)
class DecoderCase:
    """One bucket's decoder and what it is judged on.

    Attributes:
        module: the static decoder in torch.
        onnx: the float decoder for ONNX Runtime.
        utterances: evaluation utterances that fit, shortest first.
        threads: of each runtime.
        runs: timed runs of each runtime.
    """

    module: StaticDecoder
    onnx: Path
    utterances: list[ReferenceUtterance]
    threads: int
    runs: int

    @property
    def bucket(self) -> Bucket:
        """The static size."""
        return self.module.bucket

    @property
    def example(self) -> dict[str, Tensor]:
        """Inputs of the decoder's shapes, by name."""
        return {name: torch.zeros(shape) for name, shape in self.bucket.input_shapes.items()}


@dataclass(frozen=True)
class Runtime:
    """A runtime, as its module describes it.

    Attributes:
        name: of its module, of its pipeline's folder, of its artifacts and reports.
        tools: distributions whose versions the report states.
        export: writes a case's files into a directory and judges them. Of what it reports behind ``<precision>_`` the
            table shows :data:`kokoro_npu.runtimes.table.COLUMNS`.
        stem: of the report and its table, and behind the name of the gates; the bucket's frames, unless given.
    """

    name: str
    tools: tuple[str, ...]
    export: Callable[[DecoderCase, Path], Judged]
    stem: str = ""


def export_decoder(runtime: Runtime, frames: int, options: Mapping[str, Any]) -> None:
    """Export one bucket's decoder to a runtime and judge it.

    Writes artifacts/<runtime>, with the table of all utterances, and reports/runtimes/<runtime>/<frames>.json.

    Args:
        runtime: which.
        frames: of the bucket.
        options: the section ``runtimes`` of the configuration.

    Raises:
        KokoroNpuError: a gate of ``runtimes.gates.<runtime>`` is missed.
    """
    model, bucket = load_kmodel(places.WEIGHTS), Bucket(frames)
    utterances = fitting(list(load_reference_set(places.REFERENCE_SET, EVALUATION)), bucket, model)
    case = DecoderCase(
        StaticDecoder(model.decoder, bucket, bucket.fewest_rows),
        places.decoder(places.DECODERS, frames),
        at_most(options["utterances"], utterances),
        options["threads"],
        options["runs"],
    )
    directory, stem = places.ARTIFACTS / runtime.name, runtime.stem or str(frames)
    table, report = runtime.export(case, directory)
    report |= {"frames": frames, "utterances": ", ".join(item.id for item in case.utterances)} | worst_figures(table)
    write_table(directory / f"{stem}.csv", table)
    path = places.RUNTIMES / runtime.name / f"{stem}.json"
    write_report(path, report, "+".join(table["variant"].unique()), runtime.name, runtime.tools)
    gates = "_".join(filter(None, (runtime.name, runtime.stem)))
    if gates not in options["gates"]:
        print(f"runtimes.gates.{gates} is not in conf/config.yaml: {path} is not gated")
    check_gates(report, options["gates"].get(gates, {}), str(path))


def at_most(most: int, recorded: list[ReferenceUtterance]) -> list[ReferenceUtterance]:
    """So many utterances of those that fit, shortest first: the longest, and the shortest of the rest.

    A long bucket takes minutes. The extremes of padding, which a static decoder could get wrong, are among them.
    """
    return recorded if len(recorded) <= most else [*recorded[: most - 1], recorded[-1]]


def compare(files: Mapping[str, Path], loader: Loader, case: DecoderCase) -> Judged:
    """Run every utterance on each file and on ONNX Runtime CPU; no more than those two are in memory at a time.

    Args:
        files: decoders of the case, by precision.
        loader: what loads them.
        case: whose decoders they are.

    Returns:
        The table, and a report with ``<precision>_bytes`` of each file, ``…_nan_samples``, ``…_memory_bytes`` and
        ``…_time_ratio``, its median time over ONNX Runtime's in the same run; of ONNX Runtime ``onnx_memory_bytes``.
    """
    inputs = [pad_to_bucket(item.features, case.bucket) for item in case.utterances]
    tables = []
    report: dict[str, Any] = {"threads": case.threads}
    for precision, path in files.items():
        report[f"{precision}_bytes"] = path.stat().st_size
        with Engine(ONNXRUNTIME, case.onnx, case.threads) as base, Engine(loader, path, case.threads) as engine:
            tables.append(evaluate(case.utterances, case.bucket, iter([(precision, engine)])))
            base(inputs[0])  # both are warm
            engines = {REFERENCE: base, precision: engine}
            seconds = take_turns(engines, inputs, case.runs)
            report[f"{precision}_time_ratio"] = round(seconds[precision] / seconds[REFERENCE], 3)
            report[f"{precision}_nan_samples"] = engine.nan_samples
            report |= {f"{name}_memory_bytes": one.memory_bytes() for name, one in engines.items()}
    return pd.concat(tables, ignore_index=True), report


def prefixed(prefix: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """``figures`` with their keys behind ``<prefix>_``."""
    return {f"{prefix}_{name}": value for name, value in figures.items()}


def check_gates(report: Mapping[str, Any], gates: Mapping[str, float], where: str) -> None:
    """Require bounds on figures of a report.

    Args:
        report: flat.
        gates: figure to bound: the least that it may be if its name ends in ``_min``, the most if in ``_max``.
        where: names the report in the error.

    Raises:
        KokoroNpuError: the first gate that is missed, also by what is not a number; or one that the report lacks.
    """
    for gate, bound in gates.items():
        if gate not in report:
            raise KokoroNpuError(f"{where}: the gate {gate} judges nothing; {did_you_mean(gate, report)}")
        least = gate.endswith("_min")
        if not (report[gate] >= bound if least else report[gate] <= bound):
            raise KokoroNpuError(
                f"{where}: {gate} is {report[gate]:.5g}; it must be at {'least' if least else 'most'} {bound:g}"
            )
