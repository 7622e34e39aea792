"""The truth that everything is measured against: upstream's own model, unpadded, with a given source."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from kokoro import KModel
from kokoro.istftnet import Decoder, TorchSTFT
from torch import Tensor

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import NOISE_TAIL, STFT_BINS, Array


class _GivenSource(TorchSTFT):
    """Upstream's STFT whose forward transform returns a given source instead of analysing a random one."""

    def __init__(self, like: TorchSTFT, noise: Tensor) -> None:
        super().__init__(like.filter_length, like.hop_length, like.win_length)
        self.noise = noise

    def transform(self, input_data: Tensor) -> tuple[Tensor, Tensor]:
        del input_data
        return self.noise[:, :STFT_BINS], self.noise[:, STFT_BINS:]


@contextmanager
def given_source(decoder: Decoder, noise: Array) -> Iterator[None]:
    """Within the block, upstream's generator takes ``noise`` as the STFT of its source.

    Nothing else of the model changes: the inverse STFT is upstream's complex one. ``noise`` is [1, 22, 120 L + 8];
    its zero columns right of the 120 L + 1 real ones are left out.
    """
    original = decoder.generator.stft
    steps = noise.shape[2] - NOISE_TAIL
    decoder.generator.stft = _GivenSource(original, torch.from_numpy(noise[:, :, :steps]))
    try:
        yield
    finally:
        decoder.generator.stft = original


@torch.inference_mode()
def decode(decoder: Decoder, features: Mapping[str, Array]) -> Array:
    """Run upstream's decoder on unpadded features.

    Args:
        decoder: ``KModel.decoder``.
        features: as in :func:`kokoro_npu.host.steps.pad_to_bucket`.

    Returns:
        audio [600 L] float32.
    """
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in features.items()}
    with given_source(decoder, features["noise"]):
        audio = decoder(
            tensors["aligned_features"],
            tensors["f0_contour"][:, 0],
            tensors["energy"][:, 0],
            tensors["ref_style"],
        )
    return audio.reshape(-1).numpy()


@torch.inference_mode()
def synthesize(
    model: KModel, tokens: npt.NDArray[np.int64], voice: Array, speed: float, noise: Array, frames: int
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Run upstream's whole model with a given source.

    Args:
        model: upstream's model.
        tokens: [1, S] int64 with the boundary tokens.
        voice: [1, 256] float32, one row of a voice pack.
        speed: durations are divided by it.
        noise: [1, 22, 120 L + 8] float32, the STFT of the source.
        frames: L.

    Returns:
        audio [600 L] float32 and durations [S] int64.

    Raises:
        KokoroNpuError: the model's own durations do not sum to L, so that the source does not fit.
    """
    with given_source(model.decoder, noise):
        try:
            audio, durations = model.forward_with_tokens(torch.from_numpy(tokens), torch.from_numpy(voice), speed)
        except RuntimeError as error:
            raise KokoroNpuError(
                f"PyTorch's durations do not sum to the {frames} frames of the ONNX duration model: {error}"
            ) from error
    return audio.reshape(-1).numpy(), durations.reshape(-1).numpy()
