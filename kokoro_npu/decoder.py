"""The static decoder: Kokoro's decoder for a fixed number of frames, exact at any padding.

Every tensor is [1, channels, 1, width] so that the compiler sees two-dimensional convolutions and inserts no
reshapes. Padding is dealt with in two places only (design §4): it is zeroed just before every convolution, as zero
padding would have been, and the instance norms count real frames alone. The rewrites that Hexagon needs are
part of the module: depthwise upsampling in two phases, squares as products, the reciprocals of lengths as an
input, nearest upsampling as an interleave.

Source: ``kokoro.istftnet`` 0.9.4 (``Decoder``, ``Generator``, ``AdainResBlk1d``, ``AdaINResBlock1``, ``AdaIN1d``).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from kokoro import istftnet as upstream
from torch import Tensor, nn

from kokoro_npu.geometry import DECODE_RATE, GENERATOR_RATE, HOP, NOISE_TAIL, STFT_BINS, UPSAMPLE_RATES, Bucket
from kokoro_npu.istft import SYNTHESIS_PADDING, edge_kernel, synthesis_kernel

_INSTANCE_NORM_EPS = 1e-5
_GENERATOR_SLOPE = 0.1
_POST_SLOPE = 0.01
_BLOCK_SLOPE = 0.2
_HALF_ROOT = 0.5**0.5


class Rate(NamedTuple):
    """What the masked operations need at one of the decoder's rates.

    Attributes:
        mask: [1, 1, 1, W], 1 on real columns and 0 on padding.
        root_mask: ``mask`` times the root of the ratio of padded to real columns.
        ratio: [1, 1, 1, 1], padded columns over real columns.
        inverse_root: [1, 1, 1, 1], one over the root of ``ratio``.
    """

    mask: Tensor
    root_mask: Tensor
    ratio: Tensor
    inverse_root: Tensor


class MaskedAdaIN(nn.Module):
    """Adaptive instance norm over the real columns only, with the native norm op.

    With m the mask, r the ratio of padded to real columns and mu the mean over real columns, the norm of
    (x - mu) m sqrt(r) has mean zero and the variance of the real columns, so that epsilon keeps its meaning;
    dividing by sqrt(r) restores the scale.
    """

    def __init__(self, norm: upstream.AdaIN1d) -> None:
        super().__init__()
        channels = norm.fc.out_features // 2
        # The style's projection gives [gamma; beta]: as two projections nothing has to be split, and 1 + gamma is
        # folded into a bias. As pointwise convolutions their results need no reshape.
        self.scale = _pointwise(norm.fc.weight[:channels], norm.fc.bias[:channels] + 1)
        self.shift = _pointwise(norm.fc.weight[channels:], norm.fc.bias[channels:])

    def forward(self, x: Tensor, style: Tensor, rate: Rate) -> Tensor:
        """[1, C, 1, W] and style [1, 128, 1, 1] to [1, C, 1, W]; the padding of the result is not zero."""
        x = x * rate.mask
        mean = x.mean(dim=3, keepdim=True) * rate.ratio
        normed = F.instance_norm((x - mean) * rate.root_mask, eps=_INSTANCE_NORM_EPS)
        return normed * (self.scale(style) * rate.inverse_root) + self.shift(style)


class Snake(nn.Module):
    """x + sin(a x)^2 / a with a learned frequency per channel. The square is a product: Pow is wrong on HTP."""

    def __init__(self, alpha: Tensor) -> None:
        super().__init__()
        self.alpha = nn.Parameter(alpha.detach().reshape(1, -1, 1, 1).clone())
        self.inverse = nn.Parameter(1 / self.alpha.detach())

    def forward(self, x: Tensor) -> Tensor:
        """[1, C, 1, W] to the same shape."""
        sine = torch.sin(x * self.alpha)
        return x + sine * sine * self.inverse


class MaskedResBlock(nn.Module):
    """The generator's residual block (``AdaINResBlock1``): three pairs of dilated convolutions with Snake."""

    def __init__(self, block: upstream.AdaINResBlock1) -> None:
        super().__init__()
        self.norms1 = nn.ModuleList(MaskedAdaIN(norm) for norm in block.adain1)
        self.norms2 = nn.ModuleList(MaskedAdaIN(norm) for norm in block.adain2)
        self.snakes1 = nn.ModuleList(Snake(alpha) for alpha in block.alpha1)
        self.snakes2 = nn.ModuleList(Snake(alpha) for alpha in block.alpha2)
        self.convs1 = nn.ModuleList(_conv(conv) for conv in block.convs1)
        self.convs2 = nn.ModuleList(_conv(conv) for conv in block.convs2)

    def forward(self, x: Tensor, style: Tensor, rate: Rate) -> Tensor:
        """[1, C, 1, W] to the same shape."""
        layers = zip(self.norms1, self.snakes1, self.convs1, self.norms2, self.snakes2, self.convs2, strict=True)
        for norm1, snake1, conv1, norm2, snake2, conv2 in layers:
            y = conv1(snake1(norm1(x, style, rate)) * rate.mask)
            y = conv2(snake2(norm2(y, style, rate)) * rate.mask)
            x = x + y
        return x


class TwoPhaseUpsample(nn.Module):
    """A depthwise transposed convolution (k3, s2, p1, output padding 1) as its two output phases.

    Output column 2 i is w1 x[i], column 2 i + 1 is w2 x[i] + w0 x[i + 1]. The native op scored -1.8 dB on HTP.
    """

    def __init__(self, pool: nn.ConvTranspose1d, width: int) -> None:
        super().__init__()
        weight = pool.weight.detach()[:, 0, :]
        channels = weight.shape[0]
        self.previous, self.centre, self.following = (
            nn.Parameter(weight[:, tap].reshape(1, channels, 1, 1).clone()) for tap in range(3)
        )
        assert pool.bias is not None
        self.bias = nn.Parameter(pool.bias.detach().reshape(1, channels, 1, 1).clone())
        self.width = width
        self.register_buffer("end", torch.zeros(1, channels, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[1, C, 1, W], zero on padding, to [1, C, 1, 2 W]."""
        following = torch.cat([x[..., 1:], self.get_buffer("end")], dim=3)
        even = x * self.centre + self.bias
        odd = x * self.following + following * self.previous + self.bias
        return _interleave(even, odd, self.width)


class MaskedStyleBlock(nn.Module):
    """The decoder's residual block (``AdainResBlk1d``), upsampling by two or not."""

    def __init__(self, block: upstream.AdainResBlk1d, width: int) -> None:
        super().__init__()
        self.norm1 = MaskedAdaIN(block.norm1)
        self.norm2 = MaskedAdaIN(block.norm2)
        self.conv1 = _conv(block.conv1)
        self.conv2 = _conv(block.conv2)
        self.shortcut = _conv(block.conv1x1) if block.learned_sc else None
        self.pool = None if block.upsample_type == "none" else TwoPhaseUpsample(block.pool, width)
        self.width = width

    def forward(self, x: Tensor, style: Tensor, rate: Rate, out_rate: Rate) -> Tensor:
        """[1, C, 1, W] at ``rate`` to [1, C', 1, W'] at ``out_rate``, which is ``rate`` without upsampling."""
        y = F.leaky_relu(self.norm1(x, style, rate), _BLOCK_SLOPE) * rate.mask
        if self.pool is not None:
            y = self.pool(y) * out_rate.mask
        y = self.conv1(y)
        y = F.leaky_relu(self.norm2(y, style, out_rate), _BLOCK_SLOPE) * out_rate.mask
        y = self.conv2(y)
        # A pointwise convolution commutes with repetition: half the work when it comes first.
        shortcut = x if self.shortcut is None else self.shortcut(x)
        if self.pool is not None:
            shortcut = _interleave(shortcut, shortcut, self.width)
        return (y + shortcut) * _HALF_ROOT


class InverseSTFT(nn.Module):
    """Magnitude and phase to samples; see :mod:`kokoro_npu.istft`."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self.synthesis = _kernel_conv(synthesis_kernel())
        self.edge = _kernel_conv(edge_kernel())
        self.bucket = bucket

    def forward(self, magnitude: Tensor, phase: Tensor, mask: Tensor) -> Tensor:
        """Magnitude (zero on padding) and phase [1, 11, 1, W], mask [1, 1, 1, W], to audio [1, 600 T]."""
        spectrum = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=1)
        left, right = SYNTHESIS_PADDING
        hops = self.synthesis(F.pad(spectrum, (left, right))) * self.edge(F.pad(mask, (left, right)))
        # [1, 5, 1, W] to samples in order: the layout of a channels-last convolution, so free on HTP.
        samples = hops.reshape(1, HOP, self.bucket.noise_steps).transpose(1, 2)
        return samples.reshape(1, HOP * self.bucket.noise_steps)[:, : self.bucket.samples]


class Head(nn.Module):
    """From the generator's last features to audio: the part that quantization leaves floating.

    An 8-bit head costs six decibels (design §5), and holds next to no weights.
    """

    def __init__(self, conv_post: nn.Conv1d, bucket: Bucket) -> None:
        super().__init__()
        # Two convolutions, because the split of one would be a wide slice.
        self.post_magnitude = _conv(conv_post, channels=slice(0, STFT_BINS))
        self.post_phase = _conv(conv_post, channels=slice(STFT_BINS, None))
        self.inverse_stft = InverseSTFT(bucket)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """X [1, 128, 1, W], zero on padding, and mask [1, 1, 1, W] to audio [1, 600 T]."""
        magnitude = torch.exp(self.post_magnitude(x)) * mask
        return self.inverse_stft(magnitude, torch.sin(self.post_phase(x)), mask)


class StaticGenerator(nn.Module):
    """The iSTFTNet generator at the rates 2, 20 and 120 columns a frame."""

    def __init__(self, generator: upstream.Generator, bucket: Bucket) -> None:
        super().__init__()
        self.noise_convs = nn.ModuleList(_conv(conv, padding=0) for conv in generator.noise_convs)
        self.noise_left = [int(conv.padding[0]) for conv in generator.noise_convs]
        self.noise_res = nn.ModuleList(MaskedResBlock(block) for block in generator.noise_res)
        self.ups = nn.ModuleList(_conv_transpose(up) for up in generator.ups)
        self.resblocks = nn.ModuleList(MaskedResBlock(block) for block in generator.resblocks)
        self.blocks_per_rate = generator.num_kernels
        self.reflected = _reflected_column(generator.ups[-1])
        self.head = Head(generator.conv_post, bucket)
        channels = generator.ups[-1].out_channels
        self.register_buffer("tail", torch.zeros(1, channels, 1, NOISE_TAIL), persistent=False)

    def forward(self, x: Tensor, style: Tensor, noise: Tensor, rates: list[Rate]) -> Tensor:
        """X [1, 512, 1, 2 T], noise [1, 22, 1, 120 T + 8] to audio [1, 600 T]; ``rates``: 2, 20, 120 a frame."""
        last = len(self.ups) - 1
        for i, up in enumerate(self.ups):
            before, after = rates[i], rates[i + 1]
            x = F.leaky_relu(x, _GENERATOR_SLOPE) * before.mask
            # Right padding is not needed: the 120 T + 8 columns reach beyond the last window.
            left = self.noise_left[i]
            source = self.noise_convs[i](F.pad(noise, (left, 0)) if left else noise)
            source = self.noise_res[i](source, style, after)
            y = up(x)
            if i == last:
                # The reflected column is output column 1, which is one tap on input column 0: computed apart,
                # nothing wide has to be sliced.
                y = torch.cat([self.reflected(x[..., :1]), y, self.get_buffer("tail")], dim=3)
            x = y + source
            blocks = self.resblocks[i * self.blocks_per_rate : (i + 1) * self.blocks_per_rate]
            total = blocks[0](x, style, after)
            for block in blocks[1:]:
                total = total + block(x, style, after)
            x = total * (1 / self.blocks_per_rate)
        final = rates[-1]
        return self.head(F.leaky_relu(x, _POST_SLOPE) * final.mask, final.mask)


class StaticDecoder(nn.Module):
    """Features of one bucket to audio.

    Inputs and output are those of :class:`kokoro_npu.geometry.Bucket`; the host zeroes whatever lies right of
    the real frames.

    Args:
        decoder: upstream's decoder with its weight norm removed.
        bucket: the static size.
    """

    def __init__(self, decoder: upstream.Decoder, bucket: Bucket) -> None:
        super().__init__()
        self.bucket = bucket
        self.f0_conv = _conv(decoder.F0_conv)
        self.energy_conv = _conv(decoder.N_conv)
        self.asr_res = _conv(decoder.asr_res[0])
        self.encode = MaskedStyleBlock(decoder.encode, bucket.frames)
        self.decode = nn.ModuleList(MaskedStyleBlock(block, bucket.frames) for block in decoder.decode)
        self.generator = StaticGenerator(decoder.generator, bucket)
        self.register_buffer("one", torch.ones(1, 1, 1, 1), persistent=False)
        self.register_buffer("tail", torch.zeros(1, 1, 1, NOISE_TAIL), persistent=False)
        self.requires_grad_(False)
        self.eval()

    def forward(
        self,
        aligned_features: Tensor,
        f0_contour: Tensor,
        energy: Tensor,
        noise: Tensor,
        ref_style: Tensor,
        frame_mask: Tensor,
        frame_ratio: Tensor,
    ) -> Tensor:
        """Decode one bucket; shapes as in :attr:`Bucket.input_shapes`, audio [1, 600 T]."""
        aligned, f0, energy, noise, mask = (
            tensor.unsqueeze(2) for tensor in (aligned_features, f0_contour, energy, noise, frame_mask)
        )
        style = ref_style.unsqueeze(2).unsqueeze(3)
        rates = self._rates(mask, frame_ratio)
        f0 = self.f0_conv(f0)
        energy = self.energy_conv(energy)
        residual = self.asr_res(aligned)
        x = self.encode(torch.cat([aligned, f0, energy], dim=1), style, rates[0], rates[0])
        for block in self.decode:
            out_rate = rates[0] if block.pool is None else rates[1]
            x = block(torch.cat([x, residual, f0, energy], dim=1), style, rates[0], out_rate)
        return self.generator(x, style, noise, rates[1:])

    def _rates(self, mask: Tensor, frame_ratio: Tensor) -> list[Rate]:
        """Masks and ratios at 1, 2, 20 and 120 columns a frame, the last with the STFT's extra column."""
        ratios = [frame_ratio[:, i : i + 1].reshape(1, 1, 1, 1) for i in range(frame_ratio.shape[1])]
        frames = self.bucket.frames
        factors = [DECODE_RATE, DECODE_RATE * UPSAMPLE_RATES[0], GENERATOR_RATE]
        masks = [mask] + [_repeat_columns(mask, frames, factor) for factor in factors]
        masks[-1] = torch.cat([self.get_buffer("one"), masks[-1], self.get_buffer("tail")], dim=3)
        of_frames, of_steps = ratios[:3], ratios[3:]
        return [
            Rate(mask, mask * root, ratio, inverse)
            for mask, (ratio, root, inverse) in zip(masks, [of_frames] * 3 + [of_steps], strict=True)
        ]


def _repeat_columns(mask: Tensor, width: int, factor: int) -> Tensor:
    """[1, 1, 1, W] to [1, 1, 1, factor W], each column repeated in place."""
    return mask.reshape(1, 1, width, 1).expand(1, 1, width, factor).reshape(1, 1, 1, width * factor)


def _interleave(even: Tensor, odd: Tensor, width: int) -> Tensor:
    """Two [1, C, 1, W] to [1, C, 1, 2 W] with their columns taking turns."""
    channels = even.shape[1]
    columns = torch.cat([even.reshape(1, channels, width, 1), odd.reshape(1, channels, width, 1)], dim=3)
    return columns.reshape(1, channels, 1, 2 * width)


def _pointwise(weight: Tensor, bias: Tensor) -> nn.Conv2d:
    """A matrix [out, in] and its bias as a pointwise convolution over [1, in, 1, W]."""
    result = nn.Conv2d(weight.shape[1], weight.shape[0], 1)
    result.weight.data = weight.detach()[:, :, None, None].clone()
    assert result.bias is not None
    result.bias.data = bias.detach().clone()
    return result


def _conv(conv: nn.Conv1d, *, padding: int | None = None, channels: slice = slice(None)) -> nn.Conv2d:
    """A one-dimensional convolution over [1, C, 1, W]; ``channels`` keeps a part of its outputs."""
    weight = conv.weight.detach()[channels, :, None, :].clone()
    own_padding = int(conv.padding[0]) if padding is None else padding
    result = nn.Conv2d(
        conv.in_channels,
        weight.shape[0],
        (1, conv.kernel_size[0]),
        stride=(1, conv.stride[0]),
        padding=(0, own_padding),
        dilation=(1, conv.dilation[0]),
        groups=conv.groups,
        bias=conv.bias is not None,
    )
    result.weight.data = weight
    if conv.bias is not None and result.bias is not None:
        result.bias.data = conv.bias.detach()[channels].clone()
    return result


def _conv_transpose(conv: nn.ConvTranspose1d) -> nn.ConvTranspose2d:
    result = nn.ConvTranspose2d(
        conv.in_channels,
        conv.out_channels,
        (1, conv.kernel_size[0]),
        stride=(1, conv.stride[0]),
        padding=(0, int(conv.padding[0])),
    )
    result.weight.data = conv.weight.detach()[:, :, None, :].clone()
    assert conv.bias is not None
    assert result.bias is not None
    result.bias.data = conv.bias.detach().clone()
    return result


def _reflected_column(up: nn.ConvTranspose1d) -> nn.Conv2d:
    """Output column 1 of ``up`` as a pointwise convolution of its input column 0.

    Output column j takes tap k of input i where j = stride i - padding + k. For j = 1 and i = 0 the tap is
    padding + 1; a second input would need a tap of at least ``stride`` more, or a column before the first.
    """
    tap = int(up.padding[0]) + 1
    assert tap < up.stride[0]
    assert up.bias is not None
    return _pointwise(up.weight.detach()[:, :, tap].T, up.bias)


def _kernel_conv(kernel: Tensor) -> nn.Conv2d:
    """A fixed kernel [out, in, taps] as a convolution without bias over [1, in, 1, W]."""
    result = nn.Conv2d(kernel.shape[1], kernel.shape[0], (1, kernel.shape[2]), bias=False)
    result.weight.data = kernel[:, :, None, :].clone()
    return result
