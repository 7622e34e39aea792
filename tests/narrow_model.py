"""A seeded random KModel whose decoder is upstream's, only narrow: the same code and geometry in milliseconds.

Upstream initialises its convolutions with a deviation of 0.01, with which random layers die out. Here the weights keep
the variance, so that every layer is heard in the output and a fault in any of them shows.
"""

from collections.abc import Mapping

import numpy as np
import torch
from kokoro import KModel
from kokoro.istftnet import AdainResBlk1d, Decoder, Generator
from torch import nn

from kokoro_npu.geometry import HIDDEN_DIM, NOISE_CHANNELS, STYLE_DIM, Array, Bucket, source_steps
from kokoro_npu.weights.kmodel import _quiet_construction, remove_weight_norm
from tests.tiny_model import tiny_config, tiny_kmodel

WIDTH, RESIDUAL, GENERATOR_WIDTH = 48, 8, 32
_HEAD_GAIN = 0.3
"""Keeps the exponent of the magnitudes at the size that speech has."""


def narrow_kmodel(seed: int, kernels: tuple[int, ...] = (3, 7)) -> KModel:
    """A random model in eval mode, weight norm removed; the decoder has real shapes outside and narrow ones inside.

    ``kernels`` are those of the generator's residual blocks at each rate, of which the real model has three.
    """
    model = tiny_kmodel(seed)
    with _quiet_construction():
        torch.manual_seed(seed)
        _narrow(model.decoder, kernels)
        remove_weight_norm(model)
        enliven(model.decoder)
        # The duration head sees small values only: spread, so that durations differ between tokens.
        model.predictor.duration_proj.linear_layer.weight.data.normal_(0, 0.5)
        # F0 in Hz, above and below the voicing threshold.
        model.predictor.F0_proj.weight.data.normal_(0, 20)
    return model.eval().requires_grad_(False)


def _narrow(decoder: Decoder, kernels: tuple[int, ...]) -> None:
    config = tiny_config()["istftnet"] | {
        "resblock_kernel_sizes": list(kernels),
        "resblock_dilation_sizes": [[1, 3, 5]] * len(kernels),
        "upsample_initial_channel": GENERATOR_WIDTH,
    }
    joined = WIDTH + 2 + RESIDUAL
    decoder.encode = AdainResBlk1d(HIDDEN_DIM + 2, WIDTH, STYLE_DIM)
    decoder.decode = nn.ModuleList(AdainResBlk1d(joined, WIDTH, STYLE_DIM) for _ in range(3))
    decoder.decode.append(AdainResBlk1d(joined, GENERATOR_WIDTH, STYLE_DIM, upsample=True))
    decoder.asr_res = nn.Sequential(nn.Conv1d(HIDDEN_DIM, RESIDUAL, 1))
    decoder.generator = Generator(STYLE_DIM, **config)


def enliven(decoder: Decoder) -> None:
    """Give every convolution weights that keep the variance, and every Snake its own frequency."""
    for module in decoder.modules():
        if isinstance(module, nn.ConvTranspose1d) and module.groups > 1:
            module.weight.data.normal_(0, module.kernel_size[0] ** -0.5)
        elif isinstance(module, nn.ConvTranspose1d):
            module.weight.data.normal_(0, (module.in_channels * module.kernel_size[0] / module.stride[0]) ** -0.5)
        elif isinstance(module, nn.Conv1d):
            module.weight.data.normal_(0, module.weight[0].numel() ** -0.5)
    for name, parameter in decoder.named_parameters():
        if ".alpha" in name:
            parameter.data.uniform_(0.5, 2)
    decoder.generator.conv_post.weight.data *= _HEAD_GAIN


def random_features(frames: int, seed: int) -> dict[str, Array]:
    """Unpadded decoder features of one random utterance of ``frames`` frames, as the front end would give them."""
    rng = np.random.default_rng(seed)
    noise = np.zeros((1, NOISE_CHANNELS, Bucket(frames).noise_steps), np.float32)
    noise[:, :, : source_steps(frames)] = rng.standard_normal((1, NOISE_CHANNELS, source_steps(frames)))
    return {
        "aligned_features": rng.standard_normal((1, HIDDEN_DIM, frames), dtype=np.float32),
        "f0_contour": rng.uniform(0, 200, (1, 1, 2 * frames)).astype(np.float32),
        "energy": rng.standard_normal((1, 1, 2 * frames), dtype=np.float32),
        "noise": noise,
        "ref_style": 0.3 * rng.standard_normal((1, STYLE_DIM), dtype=np.float32),
    }


def as_tensors(values: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """The same arrays as tensors."""
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}
