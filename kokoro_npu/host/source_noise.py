"""The Gaussian draws of the harmonic source: one utterance's, given when a number of samples is asked for.

There are two generators. What a user hears is drawn by `speech_noise`, which gives the same bits in any language, so
that an SDK can check its audio against this project's. What calibrates and judges is drawn by `corpus_noise`, numpy's
generator: no SDK has to repeat it, and the ranges in the shipped encodings follow from its very draws.

`speech_noise` is defined by integer arithmetic and by float64 operations that IEEE 754 rounds in only one way
(+ − × ÷ √), with a logarithm made of those:

1. `SplitMix64 <https://doi.org/10.1145/2714064.2660195>`_ from the state ``seed + index``
   (``java.util.SplittableRandom`` is the same generator): 64-bit words.
2. Each word gives a coordinate ``(word >> 11) · 2⁻⁵² − 1`` in [−1, 1). Two in turn are a point (u, v).
3. Marsaglia's polar method: points outside the open unit disc, and its centre, are left out; of the others, with
   s = u² + v² and f = √(−2 ln s / s), u·f and v·f are the next two draws, rounded to float32.
"""

from collections.abc import Callable
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kokoro_npu.geometry import Array

Noise = Callable[[int], Array]
"""Number of samples to that many unit Gaussian draws, [count] float32; the same ones at each call."""

_GAMMA = 0x9E3779B97F4A7C15
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_TERMS = 15
"""Of the series of ln: the next one is below 2⁻⁵³ of the sum."""


def speech_noise(seed: int, index: int = 0) -> Noise:
    """Draws of an utterance that is spoken.

    Args:
        seed: of the speech, 0 to 2⁶³ − 1.
        index: number of the utterance in it.
    """

    def draws(count: int) -> Array:
        pairs = (count + 1) // 2
        points = pairs * 4 // 3 + 16  # 4/π for each accepted one, and some more: nearly always enough
        while True:
            u, v = _points(seed + index, points)
            s = u * u + v * v
            accepted = np.flatnonzero((s < 1.0) & (s > 0.0))[:pairs]
            if len(accepted) == pairs:
                break
            points *= 2
        u, v, s = u[accepted], v[accepted], s[accepted]
        factor = np.sqrt(-2.0 * ln(s) / s)
        return np.stack([u * factor, v * factor], axis=1).astype(np.float32).reshape(-1)[:count]

    return draws


def corpus_noise(seed: int, utterance: str = "") -> Noise:
    """Draws of an utterance of the corpus.

    Args:
        seed: of the build.
        utterance: its id; without one, draws that all utterances share.
    """
    key = [seed, crc32(utterance.encode())]
    return lambda count: np.random.default_rng(key).standard_normal(count, dtype=np.float32)


def _points(state: int, count: int) -> npt.NDArray[np.float64]:
    """The first ``count`` points after a state of SplitMix64, as coordinates [2, count]."""
    steps = np.arange(1, 2 * count + 1, dtype=np.uint64)
    z = np.uint64(state % 2**64) + steps * np.uint64(_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0).reshape(count, 2).T


def ln(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Natural logarithm of positive normal float64, by operations that round in one way only.

    With x = m · 2ᵉ and √½ ≤ m < √2: e ln 2 + 2 (t + t³/3 + t⁵/5 + …), t = (m − 1) / (m + 1).
    """
    m, e = np.frexp(x)
    low = m < _SQRT_HALF
    m = np.where(low, m + m, m)
    e = np.where(low, e - 1, e).astype(np.float64)
    t = (m - 1.0) / (m + 1.0)
    square = t * t
    total = np.full_like(t, 1.0 / (2 * _TERMS - 1))
    for term in range(_TERMS - 2, -1, -1):
        total = total * square + 1.0 / (2 * term + 1)
    return e * _LN2 + 2.0 * t * total
