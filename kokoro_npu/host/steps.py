"""The host's part: repeat tokens by their durations, choose a bucket, pad, and trim.

An application does these steps itself. They are plain numpy, so that they read like the Kotlin that ships.
"""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import (
    FRAMES_PER_SECOND,
    GENERATOR_RATE,
    NOISE_TAIL,
    SAMPLES_PER_FRAME,
    Array,
    Bucket,
    source_steps,
)


def align(features: Array, durations: npt.NDArray[np.integer]) -> Array:
    """Repeat each token's features by its duration.

    Args:
        features: [1, S, C] float32, per token.
        durations: [1, S] integers, frames per token.

    Returns:
        [1, C, L] float32 with L the sum of the durations.
    """
    return np.repeat(features, durations[0], axis=1).transpose(0, 2, 1).copy()


def frame_ratio(frames: int, bucket: Bucket) -> Array:
    """Ratios of padded to real columns, their roots and inverse roots, [1, 6] float32.

    The first three are of frames (T / L), the last three of generator steps ((120 T + 8) / (120 L + 1)). They are
    an input because HTP computes Reciprocal wrongly above 1 in a quantized graph.
    """
    ratios = (bucket.frames / frames, bucket.noise_steps / source_steps(frames))
    return np.array([[f(r) for r in ratios for f in (float, np.sqrt, lambda r: 1 / np.sqrt(r))]], dtype=np.float32)


def select_bucket(frames: int, buckets: Collection[int]) -> Bucket:
    """The smallest bucket that holds ``frames``.

    Raises:
        KokoroNpuError: no bucket is large enough.
    """
    fitting = [size for size in buckets if size >= frames]
    if not fitting:
        raise KokoroNpuError(
            f"{frames} frames ({frames / FRAMES_PER_SECOND:.1f} s) do not fit any bucket "
            f"{sorted(buckets)}: split the text"
        )
    return Bucket(min(fitting))


def pad_to_bucket(features: Mapping[str, Array], bucket: Bucket) -> dict[str, Array]:
    """Decoder inputs of one bucket from unpadded features.

    Args:
        features: ``aligned_features`` [1, 512, L], ``f0_contour`` and ``energy`` [1, 1, 2 L], ``noise``
            [1, 22, 120 L + 8], ``ref_style`` [1, 128], all float32.
        bucket: the bucket to fill; L must not exceed its frames.

    Returns:
        All inputs of the decoder, zero right of the real columns.
    """
    frames = features["aligned_features"].shape[2]
    if frames > bucket.frames:
        raise KokoroNpuError(f"{frames} frames do not fit the bucket of {bucket.frames}")
    padded: dict[str, Array] = {}
    for name, shape in bucket.input_shapes.items():
        if name == "frame_mask":
            value = np.ones((1, 1, frames), dtype=np.float32)
        elif name == "frame_ratio":
            value = frame_ratio(frames, bucket)
        else:
            value = np.asarray(features[name], dtype=np.float32)
        target = np.zeros(shape, dtype=np.float32)
        target[tuple(slice(size) for size in value.shape)] = value
        padded[name] = target
    return padded


def trim(audio: Array, frames: int) -> Array:
    """Audio [1, 600 T] cut to the 600 L samples of its real frames, [600 L]."""
    return audio.reshape(-1)[: SAMPLES_PER_FRAME * frames]


def crop(features: Mapping[str, Array], frames: int, start: int = 0) -> dict[str, Array]:
    """Cut unpadded features to a window of ``frames`` frames, as if the utterance were only that long."""
    last = start + frames
    first_step = GENERATOR_RATE * start
    noise = features["noise"][:, :, first_step : first_step + source_steps(frames)]
    return {
        **features,
        "aligned_features": features["aligned_features"][:, :, start:last],
        "f0_contour": features["f0_contour"][:, :, 2 * start : 2 * last],
        "energy": features["energy"][:, :, 2 * start : 2 * last],
        "noise": np.pad(noise, ((0, 0), (0, 0), (0, NOISE_TAIL))),
    }
