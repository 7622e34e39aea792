"""Tokens and a voice to decoder features, through the two CPU models and the host's steps between them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kokoro_npu.geometry import SAMPLES_PER_FRAME, Array
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.host.source_noise import Noise
from kokoro_npu.host.steps import align
from kokoro_npu.machine import THREADS


@dataclass(frozen=True)
class Prepared:
    """What the front end makes of one utterance of L frames.

    Attributes:
        durations: [1, S] int32, frames of each token.
        features: the decoder's inputs that carry sound, unpadded: ``aligned_features`` [1, 512, L], ``f0_contour``
            and ``energy`` [1, 1, 2 L], ``noise`` [1, 22, 120 L + 8], ``ref_style`` [1, 128].
    """

    durations: npt.NDArray[np.int32]
    features: dict[str, Array]

    @property
    def frames(self) -> int:
        """L, the sum of the durations."""
        return int(self.durations.sum())


class Frontend:
    """The duration and prosody models on ONNX Runtime CPU.

    Args:
        duration: path of ``kokoro_duration.onnx``.
        prosody: path of ``kokoro_prosody.onnx``.
        threads: of each session.
    """

    def __init__(self, duration: Path | str, prosody: Path | str, threads: int = THREADS) -> None:
        self._duration = cpu_session(duration, threads)
        self._prosody = cpu_session(prosody, threads)

    def prepare(
        self,
        tokens: npt.NDArray[np.int64],
        voice: Array,
        speed: float,
        noise: Noise,
        durations: npt.NDArray[np.int32] | None = None,
    ) -> Prepared:
        """Run both models.

        Args:
            tokens: [1, S].
            voice: [1, 256], a row of a voice pack.
            speed: divides durations.
            noise: of the source.
            durations: [1, S], frames a token in place of the predicted ones, so that two models keep the same time.
        """
        predicted, encoded, ref_style, prosody, style = self._duration.run(None, duration_feeds(tokens, voice, speed))
        durations = predicted if durations is None else durations
        f0, energy, source = self._prosody.run(None, prosody_feeds(prosody, style, durations, noise))
        features = {
            "aligned_features": align(encoded, durations),
            "f0_contour": f0,
            "energy": energy,
            "noise": source,
            "ref_style": ref_style,
        }
        return Prepared(durations, features)


def duration_feeds(tokens: npt.NDArray[np.int64], voice: Array, speed: float) -> dict[str, npt.NDArray]:
    """Inputs of the duration model; shapes as in `Frontend.prepare`."""
    return {
        "tokens": tokens,
        "token_length": np.array([tokens.shape[1]], dtype=np.int64),
        "voice_embedding": voice,
        "speed": np.array([speed], dtype=np.float32),
    }


def prosody_feeds(
    features: Array, style: Array, durations: npt.NDArray[np.int32], noise: Noise
) -> dict[str, npt.NDArray]:
    """Inputs of the prosody model.

    Args:
        features: [1, S, 640], the duration model's ``prosody_features``.
        style: [1, 128], its ``prosody_style``.
        durations: [1, S].
        noise: of the source.
    """
    return {
        "aligned_prosody": align(features, durations),
        "prosody_style": style,
        "source_noise": noise(SAMPLES_PER_FRAME * int(durations.sum()))[None, None],
    }
