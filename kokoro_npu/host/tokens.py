"""Phonemes to what the first model takes: token ids and a row of a voice pack."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.geometry import MAX_TOKENS, Array

BOUNDARY_TOKEN = 0


def tokenize(phonemes: str, vocab: Mapping[str, int], where: str) -> npt.NDArray[np.int64]:
    """Token ids [1, S] int64 of a phoneme string, between two boundary tokens.

    Upstream drops symbols that are not in its vocabulary; here they are an error, because a dropped symbol is a
    mispronounced word.

    Raises:
        KokoroNpuError: an unknown symbol, or more than 510 of them.
    """
    unknown = sorted(set(phonemes) - set(vocab))
    if unknown:
        raise KokoroNpuError(f"{where}: {unknown[0]!r} is not a symbol of Kokoro's phoneme alphabet")
    if not phonemes or len(phonemes) > MAX_TOKENS - 2:
        raise KokoroNpuError(f"{where}: {len(phonemes)} phonemes; between 1 and {MAX_TOKENS - 2} fit, split the text")
    ids = [vocab[phoneme] for phoneme in phonemes]
    return np.array([[BOUNDARY_TOKEN, *ids, BOUNDARY_TOKEN]], dtype=np.int64)


def voice_row(voices: Mapping[str, Array], name: str, phonemes: str) -> Array:
    """The row [1, 256] of a voice pack [510, 256] for a phoneme string: that of its length less one, as upstream does.

    Raises:
        KokoroNpuError: no such voice.
    """
    if name not in voices:
        raise KokoroNpuError(f"voice {name!r} is not among the weights' voices; {did_you_mean(name, voices)}")
    return np.ascontiguousarray(voices[name][len(phonemes) - 1][None], dtype=np.float32)
