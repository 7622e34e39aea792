"""Parity of one bucket with upstream's unpadded PyTorch model, and the gates on it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.audio import metrics
from kokoro_npu.audio.wav import write_wav
from kokoro_npu.build.labels import FP32, QUANTIZED, REFERENCE, TORCH
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.host.steps import crop, pad_to_bucket, trim
from kokoro_npu.model import reference
from kokoro_npu.model.decoder import StaticDecoder
from kokoro_npu.model.torch_cpu import set_up_torch

Variant = Callable[[dict[str, Array]], Array]
"""A decoder: inputs by name to audio [1, 600 T]."""


def variants(model: KModel, bucket: Bucket, fp32: Path, quantized: Path) -> Iterator[tuple[str, Variant]]:
    """The decoders that are judged, one in memory at a time: static torch, fp32 ONNX and quantized ONNX."""
    set_up_torch()
    yield TORCH, torch_variant(StaticDecoder(model.decoder, bucket))
    yield FP32, onnx_variant(fp32)
    yield QUANTIZED, onnx_variant(quantized)


def torch_variant(decoder: StaticDecoder) -> Variant:
    """The static decoder in torch."""

    def run(inputs: dict[str, Array]) -> Array:
        with torch.inference_mode():
            return decoder(**{name: torch.from_numpy(value) for name, value in inputs.items()}).numpy()

    return run


def onnx_variant(path: Path) -> Variant:
    """A decoder on ONNX Runtime CPU."""
    session = cpu_session(path)

    def run(inputs: dict[str, Array]) -> Array:
        return session.run(None, inputs)[0]

    return run


def fitting(recorded: Sequence[ReferenceUtterance], bucket: Bucket, model: KModel) -> list[ReferenceUtterance]:
    """The utterances that fit a bucket; for a bucket too small for any, the middle of the shortest (`middle`)."""
    fits = [item for item in recorded if item.frames <= bucket.frames]
    if fits:
        return fits
    return [middle(min(recorded, key=lambda item: item.frames), bucket.frames, model)]


def middle(item: ReferenceUtterance, frames: int, model: KModel) -> ReferenceUtterance:
    """The middle ``frames`` frames of a longer utterance; the reference is upstream's unpadded decoder on them."""
    features = crop(item.features, frames, (item.frames - frames) // 2)
    audio = reference.decode(model.decoder, features)
    return replace(item, id=f"{item.id}[cut]", frames=frames, features=features, reference=audio)


def evaluate(
    recorded: Sequence[ReferenceUtterance],
    bucket: Bucket,
    candidates: Iterator[tuple[str, Variant]],
    listen_dir: Path | None = None,
) -> pd.DataFrame:
    """Run every candidate on every utterance.

    Args:
        recorded: what to say, with its reference.
        bucket: of the candidates.
        candidates: name and decoder.
        listen_dir: receives the audio as ``<utterance>.<variant>.wav``, the reference as variant ``reference``.

    Returns:
        One row an utterance and variant: ``utterance, frames, fill, variant, snr_db, waveform_corr, magspec_corr,
        logmel_mae, band_<edges>_db, duration_mismatches``.
    """
    rows = []
    if listen_dir is not None:
        for item in recorded:
            write_wav(listen_dir / f"{item.id}.{REFERENCE}.wav", item.reference)
    for variant, run in candidates:
        for item in tqdm(recorded, desc=f"parity {bucket.frames} {variant}", unit="utterance"):
            audio = trim(run(pad_to_bucket(item.features, bucket)), item.frames)
            if listen_dir is not None:
                write_wav(listen_dir / f"{item.id}.{variant}.wav", audio)
            bands = metrics.band_energy_db(item.reference, audio)
            rows.append(
                {
                    "utterance": item.id,
                    "frames": item.frames,
                    "fill": item.frames / bucket.frames,
                    "variant": variant,
                    "snr_db": metrics.snr_db(item.reference, audio),
                    "waveform_corr": metrics.waveform_corr(item.reference, audio),
                    "magspec_corr": metrics.magspec_corr(item.reference, audio),
                    "logmel_mae": metrics.logmel_mae(item.reference, audio),
                    **{f"band_{name}_db": value for name, value in bands.items()},
                    "duration_mismatches": item.duration_mismatches,
                }
            )
    return pd.DataFrame(rows)


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """The worst figures of :func:`evaluate`'s table, flat."""

    def worst(variant: str, column: str, how: str) -> float:
        return round(float(table.loc[table["variant"] == variant, column].agg(how)), 6)

    bands = [column for column in table.columns if column.startswith("band_")]
    quantized = table.loc[table["variant"] == QUANTIZED, bands]
    return {
        "utterances": int(table["utterance"].nunique()),
        "torch_snr_db_min": worst(TORCH, "snr_db", "min"),
        "fp32_snr_db_min": worst(FP32, "snr_db", "min"),
        "quantized_snr_db_min": worst(QUANTIZED, "snr_db", "min"),
        "quantized_waveform_corr_min": worst(QUANTIZED, "waveform_corr", "min"),
        "quantized_magspec_corr_min": worst(QUANTIZED, "magspec_corr", "min"),
        "quantized_logmel_mae_max": worst(QUANTIZED, "logmel_mae", "max"),
        "quantized_band_db_max": round(float(quantized.abs().to_numpy().max()), 6),
        "duration_mismatches": int(table["duration_mismatches"].max()),
    }


def check_gates(table: pd.DataFrame, gates: Mapping[str, float], where: str, fill_min: float = 0.0) -> None:
    """Require every gate of every utterance.

    The float decoders are held to theirs at any fill. The quantized one is not where an utterance fills less of the
    bucket than ``fill_min``: ranges that serve a few words in minutes of padding would cost all others precision, and
    a host takes a smaller bucket. Its figures stay in the table and in the summary.

    Args:
        table: of :func:`evaluate`.
        gates: ``<variant>_<column>_min`` or ``_max`` to a bound, such as ``fp32_snr_db_min: 85``.
        where: names the bucket in the error.
        fill_min: fraction of the bucket; if no utterance reaches it, the fullest is gated.

    Raises:
        KokoroNpuError: the first gate that is missed, with the worst utterance and by how much, or tokens whose
            duration differs from PyTorch's. A figure that is not a number misses its gate.
    """
    moved = table.loc[table["duration_mismatches"] > 0, "utterance"]
    if len(moved):
        raise KokoroNpuError(f"{where}: durations of {moved.iloc[0]} differ from PyTorch's")
    for gate, bound in gates.items():
        variant, rest = gate.split("_", 1)
        column, kind = rest.rsplit("_", 1)
        gated = table["variant"] == variant
        if variant == QUANTIZED:
            gated &= table["fill"] >= min(fill_min, table["fill"].max())
        rows = table.loc[gated, ["utterance", column]]
        margins = rows[column] - bound if kind == "min" else bound - rows[column]
        missed = ~(margins >= 0)
        if missed.any():
            worst = int(margins.fillna(float("-inf")).to_numpy().argmin())
            raise KokoroNpuError(
                f"{where}: {rows['utterance'].iloc[worst]} misses {gate} {bound:g} with "
                f"{rows[column].iloc[worst]:.4g}, by {-margins.iloc[worst]:.3g}; the table is beside the report"
            )
