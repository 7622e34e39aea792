"""One decoder on one runtime against the unpadded PyTorch model, and beside ONNX Runtime in the same run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from kokoro import KModel
from torch import Tensor

from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import ReferenceUtterance, load_reference_set
from kokoro_npu.corpus.utterances import EVALUATION
from kokoro_npu.evaluate.parity import Variant, evaluate, fitting
from kokoro_npu.files import atomic, write_json
from kokoro_npu.geometry import Bucket
from kokoro_npu.host.steps import pad_to_bucket
from kokoro_npu.model.decoder import StaticDecoder
from kokoro_npu.runtimes.measure import ONNXRUNTIME, Backend, Engine, take_turns
from kokoro_npu.versions import flat_versions, provenance
from kokoro_npu.weights.canonical import source_label
from kokoro_npu.weights.kmodel import load_kmodel

REFERENCE = "onnx"
"""Prefix of ONNX Runtime's own figures."""

_FIGURES = {"snr_db": "min", "waveform_corr": "min", "magspec_corr": "min", "logmel_mae": "max"}


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        threads: of each runtime.
        runs: timed runs of each runtime.
    """

    threads: int
    runs: int


def compare(
    candidates: Mapping[str, tuple[Backend, Path]],
    onnx: Path,
    recorded: Sequence[ReferenceUtterance],
    bucket: Bucket,
    settings: Settings,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Run every utterance on each candidate and on ONNX Runtime CPU; no more than those two are in memory at a time.

    Args:
        candidates: precision to what runs it.
        onnx: the float decoder.
        recorded: utterances that fit the bucket.
        bucket: of all decoders.
        settings: threads and runs.

    Returns:
        The rows of :func:`kokoro_npu.evaluate.parity.evaluate`, one variant a precision; and a flat report with the
        worst figures of each (``<precision>_snr_db_min`` …), ``…_nan_samples``, ``…_memory_bytes`` and
        ``…_time_ratio``, median time over ONNX Runtime's in the same run; of ONNX Runtime (``onnx_…``), the memory
        alone.
    """
    inputs = [pad_to_bucket(item.features, bucket) for item in recorded]
    tables: list[pd.DataFrame] = []
    report: dict[str, Any] = {"frames": bucket.frames, "utterances": ids(recorded), "threads": settings.threads}
    for precision, (backend, path) in candidates.items():
        with Engine(ONNXRUNTIME, onnx, settings.threads) as base, Engine(backend, path, settings.threads) as engine:
            tables.append(judge({precision: engine}, recorded, bucket))
            base(inputs[0])  # both are warm
            engines = {REFERENCE: base, precision: engine}
            seconds = take_turns(engines, inputs, settings.runs)
            report[f"{precision}_time_ratio"] = round(seconds[precision] / seconds[REFERENCE], 3)
            report[f"{precision}_nan_samples"] = engine.nan_samples
            report |= {f"{name}_memory_bytes": one.memory_bytes() for name, one in engines.items()}
    table = pd.concat(tables, ignore_index=True)
    return table, report | worst_figures(table)


def judge(variants: Mapping[str, Variant], recorded: Sequence[ReferenceUtterance], bucket: Bucket) -> pd.DataFrame:
    """:func:`kokoro_npu.evaluate.parity.evaluate` of variants that may all be in memory."""
    return evaluate(recorded, bucket, iter(variants.items()))


def worst_figures(table: pd.DataFrame) -> dict[str, float]:
    """The worst figure of each variant over its utterances, flat: ``<variant>_snr_db_min`` and so on."""
    figures = {}
    for variant, rows in table.groupby("variant"):
        for column, how in _FIGURES.items():
            figures[f"{variant}_{column}_{how}"] = round(float(rows[column].agg(how)), 6)
    return figures


def at_most(most: int, recorded: Sequence[ReferenceUtterance]) -> list[ReferenceUtterance]:
    """So many utterances of those that fit, shortest first: the longest, and the shortest of the rest.

    A long bucket takes minutes. The extremes of padding, which a static decoder could get wrong, are among them.
    """
    return list(recorded) if len(recorded) <= most else [*recorded[: most - 1], recorded[-1]]


def ids(recorded: Sequence[ReferenceUtterance]) -> str:
    """Which utterances they are, as one text for a flat report."""
    return ", ".join(item.id for item in recorded)


def prefixed(prefix: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """``figures`` with their keys behind ``<prefix>_``."""
    return {f"{prefix}_{name}": value for name, value in figures.items()}


@dataclass(frozen=True)
class Case:
    """One bucket's decoder and what it is judged on, as every runtime's stage needs it.

    Attributes:
        bucket: the static size.
        model: upstream's model.
        module: its static decoder.
        onnx: the float decoder for ONNX Runtime.
        recorded: evaluation utterances that fit, shortest first.
        weights_source: label of the weights.
    """

    bucket: Bucket
    model: KModel
    module: StaticDecoder
    onnx: Path
    recorded: list[ReferenceUtterance]
    weights_source: str

    @classmethod
    def load(cls, frames: int, artifacts: Path, most: int) -> "Case":
        """Load the case of one bucket from what the default pipeline built, with :func:`at_most` utterances."""
        bucket, model = Bucket(frames), load_kmodel(artifacts / "weights")
        recorded = at_most(most, fitting(list(load_reference_set(places.REFERENCE_SET, EVALUATION)), bucket, model))
        onnx = artifacts / f"decoder/kokoro_decoder_{frames}.onnx"
        module = StaticDecoder(model.decoder, bucket, bucket.fewest_rows)
        return cls(bucket, model, module, onnx, recorded, source_label(artifacts / "weights"))

    @property
    def example(self) -> dict[str, Tensor]:
        """Inputs of the decoder's shapes, by name."""
        return {name: torch.zeros(shape) for name, shape in self.bucket.input_shapes.items()}


def save(
    name: str,
    tools: Sequence[str],
    case: Case,
    table: pd.DataFrame,
    report: Mapping[str, Any],
    stem: str = "",
    out: Path = Path("artifacts"),
    reports: Path = Path("reports"),
) -> None:
    """Write ``<out>/<name>/<stem>.csv``, utterance by utterance, and the flat ``<reports>/<name>/<stem>.json``.

    Args:
        name: of the runtime.
        tools: distributions whose versions the report states beside the usual ones.
        case: what was judged.
        table: of :func:`compare` or :func:`judge`.
        report: its figures.
        stem: of both files; the bucket's frames, unless given.
        out: directory of the artifacts.
        reports: directory of the reports.
    """
    stem = stem or str(case.bucket.frames)
    with atomic(out / name / f"{stem}.csv") as tmp:
        table.to_csv(tmp, index=False, float_format="%.6g")
    precisions = "+".join(table["variant"].unique())
    made_by = provenance(case.weights_source, precisions, name) | flat_versions(tools)
    write_json(reports / name / f"{stem}.json", {**report, **made_by})
