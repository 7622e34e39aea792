"""Listening by machine: how many words an offline recogniser gets wrong, beside what it makes of ruined speech."""

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pandas as pd
import pocketsphinx
from scipy.signal import resample_poly
from tqdm import tqdm

from kokoro_npu.audio.wav import read_wav
from kokoro_npu.build.labels import FP32, QUANTIZED, REFERENCE
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import SAMPLE_RATE, Array

Recogniser = Callable[[Array], str]
"""Audio [N] float32 at 24 kHz to lower-case words."""

_RECOGNISER_RATE = 16_000
_PHASE_SECONDS = 0.010
"""The recogniser looks every 10 ms. Where the first look falls is chance, and changes words: it is averaged out."""
NOISE, SLOW = "noise", "half-speed"
CONTROLS = (NOISE, SLOW)


def pocketsphinx_recogniser(texts: Iterable[str]) -> Recogniser:
    """PocketSphinx with the American English model of its wheel, and a vocabulary.

    There is no grammar: each word of ``texts`` is as likely as any other, anywhere. The wheel's own language model
    guesses fluent sentences instead of hearing; it got 80 % of the evaluation part wrong, and took ten times as long.

    Args:
        texts: their words are the vocabulary: those of the whole corpus, of which most are not in the text at hand.

    Raises:
        KokoroNpuError: a word that is not in the wheel's dictionary.
    """
    vocabulary = sorted({word for text in texts for word in words(text).split()})
    with tempfile.NamedTemporaryFile("w", suffix=".arpa", encoding="ascii") as model:
        model.write(_equal_words(vocabulary))
        model.flush()
        decoder = pocketsphinx.Decoder(samprate=_RECOGNISER_RATE, loglevel="FATAL", lm=model.name)
    if unknown := [word for word in vocabulary if decoder.lookup_word(word) is None]:
        raise KokoroNpuError(f"listening: PocketSphinx has no pronunciation of {', '.join(unknown)}; use other words")

    def run(audio: Array) -> str:
        wide = resample_poly(audio, _RECOGNISER_RATE, SAMPLE_RATE)
        decoder.start_utt()
        decoder.process_raw((np.clip(wide, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
        decoder.end_utt()
        found = decoder.hyp()
        return words(found.hypstr if found else "")

    return run


def _equal_words(vocabulary: Sequence[str]) -> str:
    """An ARPA language model in which all words are equally likely."""
    level = -math.log10(len(vocabulary) + 1)
    lines = ["\\data\\", f"ngram 1={len(vocabulary) + 2}", "", "\\1-grams:", "-99 <s>"]
    lines += [f"{level:.4f} {word}" for word in ("</s>", *vocabulary)]
    return "\n".join([*lines, "", "\\end\\", ""])


def words(text: str) -> str:
    """Lower-case words with single spaces; apostrophes within words stay."""
    return " ".join(re.findall(r"[a-z]+(?:'[a-z]+)*", text.lower()))


def controls(audio: Array, seed: int) -> dict[str, Array]:
    """Speech that nobody understands, which a recogniser must not pass.

    Args:
        audio: [N] float32.
        seed: of the noise's phases.

    Returns:
        ``noise``: the same long-term spectrum with random phases, [N]; ``half-speed``: played at half the speed, [2 N].
    """
    spectrum = np.fft.rfft(audio)
    turns = np.random.default_rng(seed).random(len(spectrum))
    noise = np.fft.irfft(np.abs(spectrum) * np.exp(2j * np.pi * turns), len(audio))
    return {NOISE: noise.astype(np.float32), SLOW: resample_poly(audio, 2, 1).astype(np.float32)}


def clips(
    parity_dir: Path, buckets: Sequence[int], texts: Mapping[str, str], seed: int, further: Mapping[str, Path]
) -> Iterator[tuple[str, str, str, Array]]:
    """What is heard of a build: each utterance once, in the bucket that the host would choose, and its controls.

    Args:
        parity_dir: of the stage parity-eval: ``<frames>/<utterance>.<variant>.wav``.
        buckets: frames of each bucket.
        texts: utterance to text; one that fits no bucket is left out.
        seed: of the control's noise.
        further: variant to a directory of the same form that holds it.

    Yields:
        Utterance, variant, text, audio [N] float32 at 24 kHz.

    Raises:
        KokoroNpuError: no utterance fits any bucket.
    """
    places = {REFERENCE: parity_dir, FP32: parity_dir, QUANTIZED: parity_dir, **further}
    found = False
    for utterance, text in texts.items():
        for frames in sorted(buckets):
            audio = {
                variant: read_wav(path)
                for variant, place in places.items()
                if (path := place / str(frames) / f"{utterance}.{variant}.wav").is_file()
            }
            if audio:
                found = True
                audio |= controls(audio[REFERENCE], seed)
                yield from ((utterance, variant, text, signal) for variant, signal in audio.items())
                break
    if not found:
        raise KokoroNpuError(f"{parity_dir}: no whole utterance fits the buckets {list(buckets)}; build a larger one")


def listen(clips: Iterable[tuple[str, str, str, Array]], recogniser: Recogniser, phases: int) -> pd.DataFrame:
    """Let the recogniser hear every clip, each time with its looks at other places.

    Args:
        clips: utterance, variant, its text, audio [N] float32.
        recogniser: what hears.
        phases: how often a clip is heard, with silence of k/phases of 10 ms in front; controls are heard once.

    Returns:
        One row a clip and phase: ``utterance, variant, phase, words, errors, heard``.
    """
    rows = []
    for utterance, variant, text, audio in tqdm(clips, desc="listening", unit="clip"):
        said = words(text)
        for phase in range(1 if variant in CONTROLS else phases):
            silence = np.zeros(round(SAMPLE_RATE * _PHASE_SECONDS * phase / phases), np.float32)
            heard = recogniser(np.concatenate([silence, audio]))
            found = jiwer.process_words(said, heard)
            errors = found.substitutions + found.deletions + found.insertions
            row = {"utterance": utterance, "variant": variant, "phase": phase, "words": len(said.split())}
            rows.append(row | {"errors": errors, "heard": heard})
    return pd.DataFrame(rows)


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """Word error rates in percent, all words of all utterances and phases together.

    Returns:
        ``wer_<variant>`` of each, ``wer_points_<variant>`` over the reference, ``utterances``, ``words``.
    """
    sums = table.groupby("variant")[["errors", "words"]].sum()
    rates = {str(name): 100 * float(row["errors"]) / float(row["words"]) for name, row in sums.iterrows()}
    once = table[(table["phase"] == 0) & (table["variant"] == REFERENCE)]
    report: dict[str, Any] = {"utterances": len(once), "words": int(once["words"].sum())}
    for name, rate in rates.items():
        key = name.replace("-", "_")
        report[f"wer_{key}"] = round(rate, 3)
        if name != REFERENCE:
            report[f"wer_points_{key}"] = round(rate - rates[REFERENCE], 3)
    return report


def check_gates(
    report: Mapping[str, Any], variants: Sequence[str], points_max: float, control_points_min: float
) -> None:
    """Require that the variants lose few words, and that the recogniser loses many in ruined speech.

    Args:
        report: of :func:`summarize`.
        variants: the decoders that are judged.
        points_max: percentage points of WER that they may lose to the reference.
        control_points_min: points that each control must lose; below, the recogniser proves nothing.

    Raises:
        KokoroNpuError: the first that is missed.
    """
    for name in CONTROLS:
        lost = report[f"wer_points_{name.replace('-', '_')}"]
        if not lost >= control_points_min:
            raise KokoroNpuError(
                f"listening: the control {name} loses {lost:.1f} points, less than {control_points_min:g}: "
                "this recogniser cannot tell speech from ruined speech, so its figures prove nothing"
            )
    for name in variants:
        lost = report[f"wer_points_{name}"]
        if not lost <= points_max:
            raise KokoroNpuError(
                f"listening: {name} loses {lost:.2f} points of word error rate to the reference, more than "
                f"{points_max:g}; artifacts/listening/words.csv holds what was heard"
            )
