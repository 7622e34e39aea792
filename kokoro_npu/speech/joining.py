"""Utterances to one signal: no click at a joint, and pauses as within an utterance.

Every utterance begins and ends in silence of the model's making, about a second at a joint, where a comma within an
utterance gets 0.1 to 0.5 s and a full stop 0.5 to 1 s [measured on the corpus]. The silence at a joint is cut to
that; nothing that sounds is. Both sides then fade over 5 ms, which also covers a word that had to be cut in two.
Each side is shaped on its own, so that an utterance can be played before the next one exists.
"""

import numpy as np

from kokoro_npu.geometry import SAMPLE_RATE, Array
from kokoro_npu.speech.utterances import Boundary

PAUSES = {
    Boundary.PARAGRAPH: 1.2,
    Boundary.SENTENCE: 0.8,
    Boundary.CLAUSE: 0.45,
    Boundary.PHRASE: 0.3,
    Boundary.WORD: 0.06,
}
"""Longest silence at a joint in seconds, half of it on each side."""
FADE = SAMPLE_RATE * 5 // 1000
WINDOW = SAMPLE_RATE // 100
SILENCE_DB = -45.0
"""A window of 10 ms is silent if its RMS lies so far below that of the utterance's loudest window."""


def shape(audio: Array, before: Boundary | None, after: Boundary | None) -> Array:
    """An utterance as it goes into the joined signal.

    Args:
        audio: [N] float32.
        before: the boundary to the utterance before it, None for the first, whose beginning is left as it is.
        after: the boundary to the next, None for the last, whose end is left as it is.

    Returns:
        [M] float32, M at most N.
    """
    first, last = _sounding(audio)
    start = max(0, first - _half_pause(before)) if before is not None else 0
    stop = min(len(audio), last + _half_pause(after)) if after is not None else len(audio)
    shaped = audio[start:stop].copy()
    ramp = (0.5 - 0.5 * np.cos(np.pi * np.arange(min(FADE, len(shaped))) / FADE)).astype(np.float32)
    if before is not None:
        shaped[: len(ramp)] *= ramp
    if after is not None:
        shaped[len(shaped) - len(ramp) :] *= ramp[::-1]
    return shaped


def _half_pause(boundary: Boundary) -> int:
    return int(PAUSES[boundary] / 2 * SAMPLE_RATE)


def _sounding(audio: Array) -> tuple[int, int]:
    """The samples between leading and trailing silence; all of them if nothing sounds."""
    count = -(-len(audio) // WINDOW)
    padded = np.zeros(count * WINDOW)
    padded[: len(audio)] = audio
    energy = np.square(padded.reshape(count, WINDOW)).mean(axis=1)
    loud = np.flatnonzero(energy > energy.max(initial=0) * 10 ** (SILENCE_DB / 10))
    if not len(loud):
        return 0, len(audio)
    return int(loud[0]) * WINDOW, min(len(audio), (int(loud[-1]) + 1) * WINDOW)
