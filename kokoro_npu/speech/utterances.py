"""Phonemes to utterances: whole sentences where they fit, else cut at clauses, else between words.

It works on phonemes and not on text, because Kokoro's phonemes keep the punctuation: one rule serves every
language and phonemes that the user gives. The order of the marks is upstream's (``KPipeline.waterfall_last``,
kokoro 0.9.4).
"""

import re
from collections.abc import Iterator
from enum import IntEnum

from kokoro_npu.geometry import MAX_TOKENS

MAX_PHONEMES = MAX_TOKENS - 2
"""What the duration model takes beside its two boundary tokens."""
TARGET_PHONEMES = 120
"""Sentences share an utterance up to this: about 8 s, in the range that Kokoro speaks best, and in the 10 s bucket."""
FEWEST_PHONEMES = 20
"""Shorter sentences share an utterance with a neighbour even where the first sound is wanted early: alone, Kokoro
speaks them badly."""


class Boundary(IntEnum):
    """What lies between two utterances, the best place to cut first."""

    PARAGRAPH = 0
    SENTENCE = 1
    CLAUSE = 2
    PHRASE = 3
    WORD = 4


_MARKS = {
    Boundary.SENTENCE: re.compile(r"[.!?…]+[)”\"]*(?=\s|$)"),
    Boundary.CLAUSE: re.compile(r"[:;]+[)”\"]*(?=\s|$)"),
    Boundary.PHRASE: re.compile(r"[,—]+[)”\"]*(?=\s|$)"),
    Boundary.WORD: re.compile(r"(?<=\S)(?=\s)"),
}


def boundary_at_end(phonemes: str) -> Boundary:
    """The boundary that an utterance ends in, by its last mark; `Boundary.WORD` without one."""
    for boundary in (Boundary.SENTENCE, Boundary.CLAUSE, Boundary.PHRASE):
        if any(match.end() == len(phonemes) for match in _MARKS[boundary].finditer(phonemes)):
            return boundary
    return Boundary.WORD


def cut(phonemes: str) -> tuple[str, str]:
    """Two parts of an utterance that is too long.

    The cut is at the best boundary within the middle half, nearest to the middle; without a mark there, between the
    words nearest to the middle; a single word is cut in two.

    Args:
        phonemes: at least two symbols.
    """
    size = len(phonemes)
    for boundary in (Boundary.SENTENCE, Boundary.CLAUSE, Boundary.PHRASE, Boundary.WORD):
        places = [match.end() for match in _MARKS[boundary].finditer(phonemes)]
        if boundary is not Boundary.WORD:
            places = [place for place in places if size / 4 <= place <= 3 * size / 4]
        places = [place for place in places if phonemes[:place].strip() and phonemes[place:].strip()]
        if places:
            place = min(places, key=lambda place: abs(2 * place - size))
            return phonemes[:place].strip(), phonemes[place:].strip()
    return phonemes[: size // 2], phonemes[size // 2 :]


def sentences(phonemes: str) -> Iterator[str]:
    """The sentences of a paragraph, each of at most `MAX_PHONEMES` symbols; longer ones are cut."""
    start = 0
    for end in [*(match.end() for match in _MARKS[Boundary.SENTENCE].finditer(phonemes)), len(phonemes)]:
        if sentence := phonemes[start:end].strip():
            yield from _short_enough(sentence)
        start = end


def _short_enough(phonemes: str) -> Iterator[str]:
    if len(phonemes) <= MAX_PHONEMES:
        yield phonemes
        return
    for part in cut(phonemes):
        yield from _short_enough(part)


def utterances(phonemes: str, target: int = TARGET_PHONEMES, prompt: bool = False) -> list[str]:
    """The utterances of a paragraph.

    Args:
        phonemes: of the paragraph, without line breaks.
        target: whole sentences share an utterance up to so many symbols; a longer sentence stays whole up to
            `MAX_PHONEMES`.
        prompt: keep the first utterance short, so that it sounds early.
    """
    parts: list[str] = []
    for sentence in sentences(phonemes):
        room = FEWEST_PHONEMES if prompt and len(parts) == 1 else target
        joined = f"{parts[-1]} {sentence}" if parts else sentence
        short = bool(parts) and len(parts[-1]) < FEWEST_PHONEMES and len(joined) <= target
        if parts and (len(joined) <= room or short):
            parts[-1] = joined
        else:
            parts.append(sentence)
    return parts
