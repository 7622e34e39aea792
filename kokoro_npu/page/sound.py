"""Audio of a build as the page carries it: lossless players and spectrograms."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import soundfile
from matplotlib import colormaps
from PIL import Image

from kokoro_npu.audio import metrics
from kokoro_npu.audio.wav import read_wav
from kokoro_npu.build.labels import FP32, QUANTIZED, REFERENCE
from kokoro_npu.geometry import FRAMES_PER_SECOND, SAMPLE_RATE

_LONGEST_SECONDS = 4.0
"""Audio longer than this stays out of the page, which is committed."""
_FLOOR_DB = -80.0
_SPECTROGRAM_HEIGHT = 128
_COLOURS = 32  # steps of 2.6 dB: more would only cost bytes


class Clip(NamedTuple):
    """One variant of an utterance: its name, and ``data:`` addresses of a FLAC file (or nothing) and of a PNG."""

    label: str
    audio: str
    spectrogram: str


class Sample(NamedTuple):
    """One utterance in one bucket: the SNR is that of the quantized decoder."""

    utterance: str
    frames: int
    seconds: float
    snr_db: float
    why: str
    clips: list[Clip]


def samples(parity_dir: Path, tables: Mapping[int, pd.DataFrame], precision: str) -> list[Sample]:
    """What to listen to: an utterance as a user would hear it, and the worst of the build, where both are short.

    Args:
        parity_dir: of the stage parity-eval: ``<frames>/<utterance>.<variant>.wav``.
        tables: frames of each bucket to its table.
        precision: of the quantized decoder.
    """
    rows = pd.concat([table.assign(bucket=size) for size, table in tables.items()], ignore_index=True)
    rows = rows[(rows["variant"] == QUANTIZED) & (rows["frames"] <= _LONGEST_SECONDS * FRAMES_PER_SECOND)]
    if rows.empty:
        return []
    usual = rows[rows["bucket"] == rows["bucket"].min()].sort_values("frames").iloc[-1]
    worst = rows.sort_values(["snr_db", "bucket"]).iloc[0]
    chosen = [(usual, "the longest short utterance of the smallest bucket"), (worst, "the lowest SNR of the build")]
    if usual.name == worst.name:
        chosen = chosen[1:]
    return [_sample(parity_dir, row, why, precision) for row, why in chosen]


def _sample(directory: Path, row: pd.Series, why: str, precision: str) -> Sample:
    stem = directory / str(row["bucket"])
    audio = {v: read_wav(stem / f"{row['utterance']}.{v}.wav") for v in (REFERENCE, FP32, QUANTIZED)}
    loudest = float(metrics.magnitude_spectrogram(audio[REFERENCE]).max())
    labels = {REFERENCE: "reference: PyTorch, unpadded", FP32: "fp32 ONNX", QUANTIZED: f"{precision} ONNX"}
    clips = [
        Clip(label, _data("audio/flac", flac(audio[v])), _data("image/png", spectrogram(audio[v], loudest)))
        for v, label in labels.items()
    ]
    difference = audio[QUANTIZED] - audio[REFERENCE]
    clips.append(Clip(f"{precision} minus reference", "", _data("image/png", spectrogram(difference, loudest))))
    return Sample(
        utterance=str(row["utterance"]),
        frames=int(row["bucket"]),
        seconds=len(audio[REFERENCE]) / SAMPLE_RATE,
        snr_db=float(row["snr_db"]),
        why=why,
        clips=clips,
    )


def flac(audio: npt.NDArray[np.float32]) -> bytes:
    """Mono audio [N] as a 16-bit FLAC file, which every browser plays and which loses nothing of a WAV."""
    stream = io.BytesIO()
    soundfile.write(stream, audio, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return stream.getvalue()


def spectrogram(audio: npt.NDArray[np.float32], loudest: float) -> bytes:
    """PNG of the magnitude spectrogram, 0 to 12 kHz, 0 to -80 dB below ``loudest``, one column each 10.7 ms.

    Args:
        audio: [N] float32.
        loudest: magnitude at 0 dB: that of the reference in every picture, so that they compare.
    """
    magnitudes = metrics.magnitude_spectrogram(audio)[:, 1:]
    rows = magnitudes.reshape(len(magnitudes), _SPECTROGRAM_HEIGHT, -1).max(axis=2)
    levels = 20 * np.log10(np.maximum(rows / loudest, 1e-9)).T[::-1]
    steps = np.round(np.clip(1 - levels / _FLOOR_DB, 0, 1) * (_COLOURS - 1))
    picture = Image.fromarray(steps.astype(np.uint8), mode="P")
    picture.putpalette(colormaps["magma"].resampled(_COLOURS)(range(_COLOURS), bytes=True)[:, :3].tobytes())
    stream = io.BytesIO()
    picture.save(stream, format="png", optimize=True)
    return stream.getvalue()


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
