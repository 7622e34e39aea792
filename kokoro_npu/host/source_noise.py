"""The Gaussian draws of the harmonic source, the same bits in any language.

An SDK must be able to check its audio against this project's, so the draws are defined by integer arithmetic and by
float64 operations that IEEE 754 rounds in only one way (+ − × ÷ √), with a logarithm made of those:

1. `SplitMix64 <https://doi.org/10.1145/2714064.2660195>`_ from the state ``seed + index``
   (``java.util.SplittableRandom`` is the same generator): 64-bit words.
2. Each word gives a coordinate ``(word >> 11) · 2⁻⁵² − 1`` in [−1, 1). Two in turn are a point (u, v).
3. Marsaglia's polar method: points outside the open unit disc, and its centre, are left out; of the others, with
   s = u² + v² and f = √(−2 ln s / s), u·f and v·f are the next two draws, rounded to float32.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

_GAMMA = 0x9E3779B97F4A7C15
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_TERMS = 15
"""Of the series of ln: the next one is below 2⁻⁵³ of the sum."""


class SourceNoise(np.random.Generator):
    """Draws of one utterance. It takes numpy's place in `kokoro_npu.host.frontend.Frontend.prepare`.

    Args:
        seed: of the speech, 0 to 2⁶³ − 1.
        index: of the utterance in it.
    """

    def __init__(self, seed: int, index: int = 0) -> None:
        super().__init__(np.random.PCG64(0))  # not drawn from
        self._state = (seed + index) % 2**64

    def standard_normal(self, size=None, dtype=np.float32, out=None):  # type: ignore[no-untyped-def]
        """The next draws, float32, in C order of the shape ``size``; ``dtype`` and ``out`` are numpy's and ignored."""
        del dtype, out
        return self.draws(int(np.prod(size if size is not None else 1))).reshape(size if size is not None else ())

    def draws(self, count: int) -> Array:
        """The next ``count`` draws, [count] float32; a pair's unused half is not kept for the next call."""
        found: list[Array] = []
        missing = count
        while missing > 0:
            # 4/π points for each accepted one, and some more, so that one round nearly always suffices.
            points = self._points((missing + 1) // 2 * 4 // 3 + 16)
            draws, used = _polar(points, (missing + 1) // 2)
            self._state = (self._state + 2 * used * _GAMMA) % 2**64
            found.append(draws[:missing])
            missing -= len(found[-1])
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    def _points(self, count: int) -> npt.NDArray[np.float64]:
        """The next ``count`` points, [count, 2], without moving on."""
        steps = np.arange(1, 2 * count + 1, dtype=np.uint64)
        z = np.uint64(self._state) + steps * np.uint64(_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return ((z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0).reshape(count, 2)


def _polar(points: npt.NDArray[np.float64], pairs: int) -> tuple[Array, int]:
    """At most ``pairs`` pairs of draws, flat, and how many points were used for them."""
    u, v = points[:, 0], points[:, 1]
    s = u * u + v * v
    accepted = np.flatnonzero((s < 1.0) & (s > 0.0))[:pairs]
    used = int(accepted[-1]) + 1 if len(accepted) == pairs else len(points)
    s = s[accepted]
    factor = np.sqrt(-2.0 * ln(s) / s)
    return np.stack([u[accepted] * factor, v[accepted] * factor], axis=1).astype(np.float32).reshape(-1), used


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
