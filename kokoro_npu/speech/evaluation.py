"""How good the runtime is: against PyTorch, sentence by sentence, and how soon it sounds."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.audio import metrics
from kokoro_npu.build.labels import FP32, QUANTIZED
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import SAMPLE_RATE
from kokoro_npu.model import reference
from kokoro_npu.speech.synthesizer import Synthesizer
from kokoro_npu.speech.utterances import utterances

SPEEDS = (1.0, 0.9, 1.2)
"""Sentences take turns at these, and at the voices."""


def against_pytorch(
    model: KModel, synthesizer: Synthesizer, to_phonemes: Callable[[str], str], sentences: Sequence[str], seed: int
) -> pd.DataFrame:
    """Speak every sentence with the runtime and with upstream's PyTorch model, unpadded, from the same source.

    Tokens and voice row of the reference are made here as ``KModel.forward`` and ``KPipeline.infer`` make them, not by
    the runtime's functions.

    Returns:
        One row an utterance: ``sentence`` (from 1), ``voice, speed, phonemes, frames, bucket, snr_db,
        duration_mismatches``.
    """
    rows = []
    voices = sorted(synthesizer.models.voices)
    for number, sentence in enumerate(tqdm(sentences, desc="speech against PyTorch", unit="sentence")):
        voice, speed = voices[number % len(voices)], SPEEDS[number % len(SPEEDS)]
        for index, phonemes in enumerate(utterances(to_phonemes(sentence))):
            prepared = synthesizer.prepare(phonemes, voice, speed, seed, index)
            spoken = synthesizer.decode(phonemes, prepared)
            tokens = np.array([[0, *(model.vocab[symbol] for symbol in phonemes), 0]])
            row = synthesizer.models.voices[voice][[len(phonemes) - 1]]
            truth, durations = reference.synthesize(
                model, tokens, row, speed, prepared.features["noise"], prepared.frames
            )
            rows.append(
                {
                    "sentence": number + 1,
                    "voice": voice,
                    "speed": speed,
                    "phonemes": phonemes,
                    "frames": spoken.frames,
                    "bucket": spoken.bucket.frames,
                    "snr_db": metrics.snr_db(truth, spoken.audio),
                    "duration_mismatches": int((durations != prepared.durations[0]).sum()),
                }
            )
    return pd.DataFrame(rows)


def check_gate(table: pd.DataFrame, snr_db_min: float) -> None:
    """Require of every utterance of `against_pytorch` at least so many dB, and PyTorch's durations.

    Raises:
        KokoroNpuError: names the worst sentence. A figure that is not a number misses the gate.
    """
    figures = table["snr_db"].to_numpy()
    at = int(np.nan_to_num(figures, nan=-np.inf).argmin())
    if not figures[at] >= snr_db_min:
        raise KokoroNpuError(
            f"speech: sentence {table['sentence'].to_numpy()[at]} has {figures[at]:.1f} dB against PyTorch, the gate "
            f"is {snr_db_min:g}"
        )
    if moved := int(table["duration_mismatches"].sum()):
        raise KokoroNpuError(f"speech: {moved} durations differ from PyTorch's")


def summary(
    table: pd.DataFrame,
    synthesizers: Mapping[str, Synthesizer],
    to_phonemes: Callable[[str], str],
    text: str,
    runs: int,
) -> dict[str, Any]:
    """A flat report: the worst of a table of `against_pytorch`, and how soon warm synthesizers sound.

    The latter are ratios to the length of the audio, of the time from the text (phonemes included) to the first
    utterance's audio and to the end.

    Args:
        table: of the float decoders.
        synthesizers: by precision.
        to_phonemes: the front end.
        text: of about 3 s, which is timed.
        runs: whose median counts, after one that warms up.

    Returns:
        The table's figures, and ``seconds`` of audio, ``first_sound_ratio``, ``all_ratio``, those of the quantized
        decoders as ``quantized_...``.
    """
    report: dict[str, Any] = {
        "sentences": int(table["sentence"].nunique()),
        "utterances": len(table),
        "buckets_used": sorted(int(frames) for frames in table["bucket"].unique()),
        "fp32_snr_db_min": round(float(table["snr_db"].min()), 3),
        "fp32_snr_db_median": round(float(table["snr_db"].median()), 3),
        "duration_mismatches": int(table["duration_mismatches"].sum()),
    }
    for precision, prefix in ((FP32, ""), (QUANTIZED, "quantized_")):
        timed = [_times(synthesizers[precision], to_phonemes, text) for _ in range(runs + 1)][1:]
        seconds, first, every = (statistics.median(column) for column in zip(*timed, strict=True))
        report[f"{prefix}seconds"] = seconds
        report[f"{prefix}first_sound_ratio"] = round(first / seconds, 4)
        report[f"{prefix}all_ratio"] = round(every / seconds, 4)
    return report


def _times(synthesizer: Synthesizer, to_phonemes: Callable[[str], str], text: str) -> tuple[float, float, float]:
    """Seconds of audio, to the first sound, to the end."""
    started = time.perf_counter()
    speech = synthesizer.speak([to_phonemes(text)], min(synthesizer.models.voices), prompt=True)
    samples = len(next(speech).audio)
    first = time.perf_counter() - started
    samples += sum(len(utterance.audio) for utterance in speech)
    return samples / SAMPLE_RATE, first, time.perf_counter() - started
