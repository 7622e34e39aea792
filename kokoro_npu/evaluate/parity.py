"""Parity of one bucket with upstream's unpadded PyTorch model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.audio import metrics
from kokoro_npu.audio.wav import write_wav
from kokoro_npu.build.labels import FP32, QUANTIZED, REFERENCE, TORCH
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.evaluate.gates import worst_figures
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


def replayed(audio: Iterable[Array]) -> Variant:
    """A decoder that has run elsewhere: its audio, in the order of the utterances."""
    left = iter(audio)
    return lambda _: next(left)


def torch_variant(decoder: StaticDecoder) -> Variant:
    """The static decoder in torch."""

    def run(inputs: dict[str, Array]) -> Array:
        with torch.inference_mode():
            return decoder(**{name: torch.from_numpy(value) for name, value in inputs.items()}).numpy()

    return run


def onnx_variant(model: Path | bytes) -> Variant:
    """A decoder on ONNX Runtime CPU: a file, or the bytes of a model that holds its weights."""
    session = cpu_session(model)

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
        logmel_mae, band_<edges>_db, band_db, duration_mismatches``; ``band_db`` is the band that is off most, in dB.
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
                    "band_db": float(np.abs(list(bands.values())).max()),
                    "duration_mismatches": item.duration_mismatches,
                }
            )
    return pd.DataFrame(rows)


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """The worst figures of :func:`evaluate`'s table, flat: all of the quantized decoder, the SNR of the others."""
    worst = worst_figures(table).items()
    return {
        "utterances": int(table["utterance"].nunique()),
        **{name: value for name, value in worst if name.startswith(QUANTIZED) or name.endswith("snr_db_min")},
        "duration_mismatches": int(table["duration_mismatches"].max()),
    }
