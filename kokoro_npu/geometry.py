"""The model's time axis, defined once: frames, F0 values, generator steps, samples.

One duration frame is 600 samples at 24 kHz. The decoder doubles the rate once, the generator multiplies it by 10
and 6, and the inverse STFT hops 5 samples (istftnet upsample rates and hop of Kokoro's ``config.json``). A hop of
256 samples a frame, which is often assumed of Kokoro, is wrong: it would cut off more than half of the audio.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
"""What flows between the models; shapes are said where it is used."""

SAMPLE_RATE = 24_000
DECODE_RATE = 2
UPSAMPLE_RATES = (10, 6)
N_FFT = 20
HOP = 5
GENERATOR_RATE = DECODE_RATE * UPSAMPLE_RATES[0] * UPSAMPLE_RATES[1]
SAMPLES_PER_FRAME = GENERATOR_RATE * HOP
FRAMES_PER_SECOND = SAMPLE_RATE // SAMPLES_PER_FRAME

HIDDEN_DIM = 512
STYLE_DIM = 128
VOICE_DIM = 2 * STYLE_DIM
PROSODY_DIM = HIDDEN_DIM + STYLE_DIM
STFT_BINS = N_FFT // 2 + 1
NOISE_CHANNELS = 2 * STFT_BINS
FRAME_RATIOS = 6

MAX_TOKENS = 512
"""PL-BERT positions: phoneme tokens plus the two boundary tokens."""

STEP_PADDING = 8
"""Columns after the 120 T steps: the one of the centred STFT, and zeros up to a multiple of 8, because
lengths that are not (19,201) failed to finalize on a device where 19,208 passed."""
NOISE_TAIL = STEP_PADDING - 1
"""Zero columns right of the real ones of a ``noise`` that is not padded to a bucket."""

MAX_WIDTH = 65_535
"""Widest multi-channel tensor that HTP's compiler finalizes at every level."""
_WIDEST_HALO = 50
"""Columns that the widest convolution of the last rate adds to a row (kernel 11, dilation 5)."""
_UNFOLDED_WIDTH = 16_384
"""Widest last rate that is left as one row. A wider one compiles in half the time and memory when time is folded
(400 frames, docs/hexagon.md); a narrower one gains nothing (120 frames)."""


@dataclass(frozen=True)
class Bucket:
    """A static decoder size. It is known by its frames; its seconds are derived.

    Attributes:
        frames: number of duration frames, T.
    """

    frames: int

    @property
    def seconds(self) -> float:
        """Longest audio of the bucket in seconds."""
        return self.frames / FRAMES_PER_SECOND

    @property
    def f0_steps(self) -> int:
        """Length of ``f0_contour`` and ``energy``."""
        return DECODE_RATE * self.frames

    @property
    def noise_steps(self) -> int:
        """Length of ``noise``: 120 T + 8, of which 120 L + 1 are real for L real frames."""
        return GENERATOR_RATE * self.frames + STEP_PADDING

    @property
    def rows(self) -> int:
        """Rows into which HTP's decoder folds time at the last rate, R (:mod:`kokoro_npu.model.folding`)."""
        return 1 if self.noise_steps <= _UNFOLDED_WIDTH else self._most_rows

    @property
    def fewest_rows(self) -> int:
        """As few rows as keep the last rate's width within ``MAX_WIDTH``, or the most: for all other compilers."""
        fitting = (rows for rows in (1, 2, 4) if self.noise_steps // rows + _WIDEST_HALO * (rows > 1) <= MAX_WIDTH)
        return next(fitting, self._most_rows)

    @property
    def _most_rows(self) -> int:
        # They divide every width of the last rate; the rate before is cut into as many pieces: eight, or four where the
        # frames are odd. The fewer there are, the less a compile gains.
        return math.gcd(STEP_PADDING, DECODE_RATE * UPSAMPLE_RATES[0] * self.frames)

    @property
    def samples(self) -> int:
        """Length of ``audio``."""
        return SAMPLES_PER_FRAME * self.frames

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Decoder inputs in their ONNX order, name to shape; all are float32."""
        return {
            "aligned_features": (1, HIDDEN_DIM, self.frames),
            "f0_contour": (1, 1, self.f0_steps),
            "energy": (1, 1, self.f0_steps),
            "noise": (1, NOISE_CHANNELS, self.noise_steps),
            "ref_style": (1, STYLE_DIM),
            "frame_mask": (1, 1, self.frames),
            "frame_ratio": (1, FRAME_RATIOS),
        }

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Decoder outputs, name to shape; float32."""
        return {"audio": (1, self.samples)}


def source_steps(frames: int) -> int:
    """Length of the source's STFT for ``frames`` unpadded frames: 120 L + 1."""
    return GENERATOR_RATE * frames + 1
