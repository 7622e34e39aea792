"""What each known idea for better weights brings, one at a time, with everything else in floating point.

Weights are put on their grid inside the torch decoder, so that an idea costs a few runs of some windows and no file.
Sources: MSE and percentile ranges as in the usual post-training quantizers; bias correction and cross-layer
equalisation: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019,
arXiv:1906.04721; GPTQ: see :mod:`kokoro_npu.quantize.rounding`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from kokoro import istftnet as upstream
from torch import Tensor, nn

from kokoro_npu import metrics
from kokoro_npu.blocks import MaskedResBlock, MaskedStyleBlock, Snake, StyleProjections
from kokoro_npu.decoder import StaticDecoder
from kokoro_npu.geometry import Bucket
from kokoro_npu.quantize.rounded import RoundedWeight
from kokoro_npu.quantize.rounding import Layer, channel_axis, layers
from kokoro_npu.rows import RowConv
from kokoro_npu.runtime import Array, pad_to_bucket

BITS = 8
_CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
_PERCENTILE = 99.9

Window = Mapping[str, Array]
"""Unpadded decoder features."""


@dataclass(frozen=True)
class Result:
    """What one idea brought.

    Attributes:
        idea: its name.
        snr_db_min: the worst against the float decoder.
        logmel_mae_max: the worst.
    """

    idea: str
    snr_db_min: float
    logmel_mae_max: float

    @classmethod
    def judge(cls, idea: str, truth: Sequence[Array], heard: Sequence[Array]) -> "Result":
        """The worst of pairs of audio."""
        pairs = list(zip(truth, heard, strict=True))
        return cls(idea, min(metrics.snr_db(*pair) for pair in pairs), max(metrics.logmel_mae(*p) for p in pairs))


def per_tensor(layer: Layer) -> Tensor:
    """Nearest, one symmetric scale a weight."""
    return _grid(layer, layer.weight.abs().amax().reshape(1))


def per_channel(layer: Layer) -> Tensor:
    """Nearest, one symmetric scale an output channel."""
    return _grid(layer, _channels(layer).abs().amax(dim=1))


def percentile(layer: Layer) -> Tensor:
    """Per channel, clipped at the 99.9th percentile of the magnitudes."""
    return _grid(layer, torch.quantile(_channels(layer).abs(), _PERCENTILE / 100, dim=1))


def mse(layer: Layer) -> Tensor:
    """Per channel, clipped where the squared error of the weights is least."""
    channels = _channels(layer)
    peaks = channels.abs().amax(dim=1)
    errors = []
    for clip in _CLIPS:
        step = (clip * peaks).clamp_min(1e-12)[:, None] / _TOP
        errors.append(((channels / step).round().clamp(-_TOP, _TOP) * step - channels).square().sum(dim=1))
    best = torch.stack(errors).argmin(dim=0)
    return _grid(layer, torch.tensor(_CLIPS)[best] * peaks)


_TOP = 2 ** (BITS - 1) - 1


def _channels(layer: Layer) -> Tensor:
    return layer.weight.detach().movedim(channel_axis(layer), 0).flatten(1)


def _grid(layer: Layer, peaks: Tensor) -> Tensor:
    step = peaks.clamp_min(1e-12) / _TOP
    step = step.reshape([-1 if dim == channel_axis(layer) else 1 for dim in range(4)])
    return (layer.weight.detach() / step).round().clamp(-_TOP, _TOP) * step


class Contest:
    """Windows on which ideas are compared.

    Args:
        decoder: upstream's decoder, weight norm removed.
        windows: features, all of one length; each is heard in a bucket of its own size.
        skipped: beginnings of the names of weights that stay floating.
    """

    def __init__(self, decoder: upstream.Decoder, windows: Sequence[Window], skipped: tuple[str, ...]) -> None:
        frames = {window["aligned_features"].shape[2] for window in windows}
        assert len(frames) == 1
        bucket = Bucket(frames.pop())
        self.decoder = StaticDecoder(decoder, bucket)
        self._inputs = [
            {name: torch.from_numpy(value) for name, value in pad_to_bucket(window, bucket).items()}
            for window in windows
        ]
        self.layers = {name: layer for name, layer in layers(self.decoder).items() if not name.startswith(skipped)}
        self._float = {name: tensor.clone() for name, tensor in self.decoder.state_dict().items()}
        self._truth = self.hear()

    def hear(self) -> list[Array]:
        """The audio of each window with the weights as they are."""
        with torch.inference_mode():
            return [self.decoder(**inputs)[0].numpy() for inputs in self._inputs]

    def judge(self, idea: str, weights: Mapping[str, Tensor], prepare: Callable[[], None] | None = None) -> Result:
        """Run the windows with other weights; ``prepare`` may change the decoder further. Everything is put back."""
        for name, weight in weights.items():
            # A copy: what is put back later goes into the same storage.
            self.layers[name].weight.data = weight.clone()
        if prepare:
            prepare()
        heard = self.hear()
        self.reset()
        return Result.judge(idea, self._truth, heard)

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace some of the decoder's tensors."""
        self.decoder.load_state_dict(tensors, strict=False)

    def reset(self) -> None:
        """Float weights again."""
        self.decoder.load_state_dict(self._float)

    def apply(self, rule: Callable[[Layer], Tensor]) -> dict[str, Tensor]:
        """A rule on every weight."""
        return {name: rule(layer) for name, layer in self.layers.items()}

    def correct_biases(self, weights: Mapping[str, Tensor]) -> None:
        """Move each bias so that the layer's mean output over the windows is the float layer's."""
        means: dict[str, list[Tensor]] = {name: [] for name in weights}
        handles = []
        for name in weights:
            if self.layers[name].bias is not None:
                exact = self._float[name]

                def note(
                    layer: nn.Module,
                    inputs: tuple[Tensor, ...],
                    output: Tensor,
                    name: str = name,
                    exact: Tensor = exact,
                ) -> None:
                    assert isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)
                    quantized, layer.weight.data = layer.weight.data, exact
                    means[name].append((layer.forward(inputs[0]) - output).mean(dim=3)[0, :, 0])
                    layer.weight.data = quantized

                handles.append(self.layers[name].register_forward_hook(note))
        self.hear()
        for handle in handles:
            handle.remove()
        for name, found in means.items():
            bias = self.layers[name].bias
            if found and bias is not None:
                bias.data = bias.data + torch.stack(found).mean(dim=0)

    def equalize(self) -> dict[str, Tensor]:
        """Cross-layer equalisation where it is exact: from a style norm through an activation into a convolution.

        A gain on a channel of the norm's scale and shift passes the leaky ReLU, and passes Snake if its frequency is
        divided by it (x + sin(a x)^2 / a at a / g of g x is g times what it was). The convolution's weight undoes it;
        each channel gets the gain that makes both ranges alike.

        Returns:
            The biases and frequencies that go with it.
        """
        generator, count = self.decoder.generator, self.decoder.generator.blocks_per_rate
        groups: list[list[tuple[nn.Conv2d, Snake | None] | int]] = [[]]
        for block in (module for module in self.decoder.modules() if isinstance(module, MaskedStyleBlock)):
            # The depthwise upsampling stands between the first norm and its convolution.
            groups[0] += [(block.conv1, None) if block.pool is None else block.conv1.in_channels, (block.conv2, None)]
        for i, source in enumerate(generator.noise_res):
            groups.append([])
            for block in (source, *generator.resblocks[i * count : (i + 1) * count]):
                assert isinstance(block, MaskedResBlock)
                for pair in zip(block.convs1, block.snakes1, block.convs2, block.snakes2, strict=True):
                    for conv, snake in (pair[:2], pair[2:]):
                        assert isinstance(conv, RowConv)
                        assert isinstance(snake, Snake)
                        groups[-1].append((conv.conv, snake))
        for styles, followers in zip(self.decoder.styles, groups, strict=True):
            assert isinstance(styles, StyleProjections)
            start = 0
            for follower in followers:
                channels = follower if isinstance(follower, int) else follower[0].in_channels
                if not isinstance(follower, int):
                    _equalize(styles, slice(start, start + channels), *follower)
                start += channels
        ends = (".bias", ".alpha", ".inverse")
        return {name: tensor.clone() for name, tensor in self.decoder.state_dict().items() if name.endswith(ends)}


def _equalize(styles: StyleProjections, norm: slice, conv: nn.Conv2d, snake: Snake | None) -> None:
    """``norm``: the rows of the projections that scale and shift the convolution's input."""
    own = torch.cat([styles.scale.weight.data[norm].flatten(1), styles.shift.weight.data[norm].flatten(1)], dim=1)
    next_one = conv.weight.data.abs().amax(dim=(0, 2, 3))
    gain = (next_one / own.abs().amax(dim=1).clamp_min(1e-12)).sqrt()
    # What is gained is a matter of proportions; the mean stays where it is.
    gain = (gain / gain.log().mean().exp()).clamp(0.1, 10)
    for layer in (styles.scale, styles.shift):
        layer.weight.data[norm] *= gain[:, None, None, None]
        assert layer.bias is not None
        layer.bias.data[norm] *= gain
    if snake is not None:
        snake.alpha.data /= gain[None, :, None, None]
        snake.inverse.data *= gain[None, :, None, None]
    conv.weight.data = conv.weight.data / gain[None, :, None, None]


def compare_weights(
    decoder: upstream.Decoder, windows: Sequence[Window], rounded: Mapping[str, RoundedWeight], skipped: tuple[str, ...]
) -> list[Result]:
    """All ideas for 8-bit weights on the same windows.

    Args:
        decoder: upstream's decoder, weight norm removed.
        windows: features of what is judged, all of one length.
        rounded: 8-bit weights by GPTQ, on utterances of which none is judged; those that it lacks stay at nearest.
        skipped: beginnings of the names of weights that stay floating.
    """
    contest = Contest(decoder, windows, skipped)
    nearest = contest.apply(per_channel)
    results = [
        contest.judge("nearest, per tensor", contest.apply(per_tensor)),
        contest.judge("nearest, per channel", nearest),
        contest.judge("per channel, percentile ranges (99.9)", contest.apply(percentile)),
        contest.judge("per channel, MSE ranges", contest.apply(mse)),
        contest.judge("per channel, bias correction", nearest, lambda: contest.correct_biases(nearest)),
    ]
    biases, equalized = contest.equalize(), contest.apply(per_channel)
    contest.reset()
    results.append(contest.judge("per channel, cross-layer equalisation", equalized, lambda: contest.put(biases)))
    gptq = {n: torch.from_numpy(w.values(channel_axis(contest.layers[n]))) for n, w in rounded.items()}
    results.append(contest.judge("per channel, GPTQ", nearest | gptq))
    results.append(contest.judge("per channel, GPTQ, the others floating", gptq))
    return results
