"""The static decoder: Kokoro's decoder for a fixed number of frames, exact at any padding.

Every tensor is [1, channels, rows, width] so that the compiler sees two-dimensional convolutions and inserts no
reshapes; there is one row, but at the last rate of a long bucket (:mod:`kokoro_npu.rows`). Padding is dealt with in two
places only (design §4): it is zeroed just before every convolution, as zero padding would have been, and the instance
norms count real frames alone. The rewrites that Hexagon needs are part of the module: depthwise upsampling in two
phases, squares as products, the reciprocals of lengths as an input, nearest upsampling as an interleave. So are those
that only save it operations: all style projections in a few matrix products, their results as the norm op's own scale
and shift, constant factors inside the weights, inputs brought into its layout once.

Source: ``kokoro.istftnet`` 0.9.4 (``Decoder``, ``Generator``, ``AdainResBlk1d``, ``AdaINResBlock1``, ``AdaIN1d``).
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from kokoro import istftnet as upstream
from torch import Tensor, nn

from kokoro_npu.convs import conv2d, conv_transpose2d, interleave, kernel_conv, pointwise, scaled
from kokoro_npu.geometry import DECODE_RATE, HOP, STEP_PADDING, STFT_BINS, UPSAMPLE_RATES, Bucket
from kokoro_npu.istft import SYNTHESIS_PADDING, edge_kernel, synthesis_kernel
from kokoro_npu.rows import LastUpsample, NoiseConv, RowConv, last_mask, with_halo

_INSTANCE_NORM_EPS = 1e-5
_GENERATOR_SLOPE = 0.1
_POST_SLOPE = 0.01
_BLOCK_SLOPE = 0.2
_HALF_ROOT = 0.5**0.5


class Rate(NamedTuple):
    """What the masked operations need at one of the decoder's rates.

    Attributes:
        mask: [1, 1, R, W], 1 on real columns and 0 on padding.
        root_mask: ``mask`` times the root of the ratio of padded to real columns.
        ratio: [1, 1, 1, 1], padded columns over real columns.
    """

    mask: Tensor
    root_mask: Tensor
    ratio: Tensor


class Affine(NamedTuple):
    """What the style makes of one instance norm.

    Attributes:
        scale: [C], 1 + gamma, over the root of the rate's ratio.
        shift: [C], beta.
    """

    scale: Tensor
    shift: Tensor


class StyleProjections(nn.Module):
    """The projections of all adaptive norms of one kind of block: one product for the scales, one for the shifts.

    Args:
        norms: upstream's norms in the order in which the blocks ask for them.
    """

    def __init__(self, norms: Iterable[upstream.AdaIN1d]) -> None:
        super().__init__()
        layers = [norm.fc for norm in norms]
        self.channels = [layer.out_features // 2 for layer in layers]
        # Each projection gives [gamma; beta]; 1 + gamma is folded into the bias.
        halves = [(layer.weight.chunk(2), layer.bias.chunk(2)) for layer in layers]
        self.scale = pointwise(torch.cat([w[0] for w, _ in halves]), torch.cat([b[0] for _, b in halves]) + 1)
        self.shift = pointwise(torch.cat([w[1] for w, _ in halves]), torch.cat([b[1] for _, b in halves]))

    def forward(self, style: Tensor, inverse_root: Tensor) -> tuple[Tensor, Tensor]:
        """Style [1, 128, 1, 1] and one over the ratio's root [1, 1, 1, 1] to all norms' scales and shifts."""
        return self.scale(style) * inverse_root, self.shift(style)


class AffineSplit(nn.Module):
    """The scales and shifts of all norms, [1, C, 1, 1], to those of each.

    A module of its own, because quantization leaves it floating: the norms take half-precision scales and shifts, so
    that one conversion before the split serves for one after it for each norm.
    """

    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, scale: Tensor, shift: Tensor) -> Iterator[Affine]:
        """Both of the norms in their order, as tensors of one dimension."""
        scales, shifts = (x.permute(0, 2, 3, 1).reshape(-1).split(self.channels) for x in (scale, shift))
        return map(Affine, scales, shifts)


class MaskedAdaIN(nn.Module):
    """Adaptive instance norm over the real columns only, with the native norm op.

    With m the mask, r the ratio of padded to real columns and mu the mean over real columns, the norm of
    (x - mu) m sqrt(r) has mean zero and the variance of the real columns, so that epsilon keeps its meaning;
    dividing by sqrt(r), which is part of the scale, restores the size.
    """

    def forward(self, x: Tensor, affine: Affine, rate: Rate) -> Tensor:
        """[1, C, R, W] to the same shape; the padding of the result is not zero."""
        x = x * rate.mask
        time = 3 if x.shape[2] == 1 else (2, 3)
        mean = x.mean(dim=time, keepdim=True) * rate.ratio
        return F.instance_norm(
            (x - mean) * rate.root_mask, weight=affine.scale, bias=affine.shift, eps=_INSTANCE_NORM_EPS
        )


class Snake(nn.Module):
    """x + sin(a x)^2 / a with a learned frequency per channel. The square is a product: Pow is wrong on HTP."""

    def __init__(self, alpha: Tensor) -> None:
        super().__init__()
        self.alpha = nn.Parameter(alpha.detach().reshape(1, -1, 1, 1).clone())
        self.inverse = nn.Parameter(1 / self.alpha.detach())

    def forward(self, x: Tensor) -> Tensor:
        """[1, C, R, W] to the same shape."""
        sine = torch.sin(x * self.alpha)
        return x + sine * sine * self.inverse


class MaskedResBlock(nn.Module):
    """The generator's residual block (``AdaINResBlock1``): three pairs of dilated convolutions with Snake."""

    def __init__(self, block: upstream.AdaINResBlock1, rows: int) -> None:
        super().__init__()
        self.norms1 = nn.ModuleList(MaskedAdaIN() for _ in block.adain1)
        self.norms2 = nn.ModuleList(MaskedAdaIN() for _ in block.adain2)
        self.snakes1 = nn.ModuleList(Snake(alpha) for alpha in block.alpha1)
        self.snakes2 = nn.ModuleList(Snake(alpha) for alpha in block.alpha2)
        self.convs1 = nn.ModuleList(RowConv(conv, rows) for conv in block.convs1)
        self.convs2 = nn.ModuleList(RowConv(conv, rows) for conv in block.convs2)

    @staticmethod
    def style_norms(block: upstream.AdaINResBlock1) -> list[upstream.AdaIN1d]:
        """The norms of upstream's block in the order in which they are used."""
        return [norm for pair in zip(block.adain1, block.adain2, strict=True) for norm in pair]

    def forward(self, x: Tensor, affines: Iterator[Affine], rate: Rate) -> Tensor:
        """[1, C, R, W] to the same shape; takes its norms' scales and shifts from ``affines``."""
        layers = zip(self.norms1, self.snakes1, self.convs1, self.norms2, self.snakes2, self.convs2, strict=True)
        for norm1, snake1, conv1, norm2, snake2, conv2 in layers:
            y = conv1(snake1(norm1(x, next(affines), rate)) * rate.mask)
            y = conv2(snake2(norm2(y, next(affines), rate)) * rate.mask)
            x = x + y
        return x


class TwoPhaseUpsample(nn.Module):
    """A depthwise transposed convolution (k3, s2, p1, output padding 1) as its two output phases.

    Output column 2 i is w1 x[i], column 2 i + 1 is w2 x[i] + w0 x[i + 1]. The native op scored -1.8 dB on HTP.
    """

    def __init__(self, pool: nn.ConvTranspose1d) -> None:
        super().__init__()
        weight = pool.weight.detach()[:, 0, :]
        channels = weight.shape[0]
        self.previous, self.centre, self.following = (
            nn.Parameter(weight[:, tap].reshape(1, channels, 1, 1).clone()) for tap in range(3)
        )
        assert pool.bias is not None
        self.bias = nn.Parameter(pool.bias.detach().reshape(1, channels, 1, 1).clone())
        self.register_buffer("end", torch.zeros(1, channels, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[1, C, 1, W], zero on padding, to [1, C, 1, 2 W]."""
        following = torch.cat([x[..., 1:], self.get_buffer("end")], dim=3)
        even = x * self.centre + self.bias
        odd = x * self.following + following * self.previous + self.bias
        return interleave([even, odd])


class MaskedStyleBlock(nn.Module):
    """The decoder's residual block (``AdainResBlk1d``), upsampling by two or not."""

    def __init__(self, block: upstream.AdainResBlk1d) -> None:
        super().__init__()
        self.norm1 = MaskedAdaIN()
        self.norm2 = MaskedAdaIN()
        self.conv1 = conv2d(block.conv1)
        # The sum of both branches is scaled: so are their last weights instead.
        self.conv2 = scaled(conv2d(block.conv2), _HALF_ROOT, bias=True)
        self.shortcut = scaled(conv2d(block.conv1x1), _HALF_ROOT) if block.learned_sc else None
        self.pool = None if block.upsample_type == "none" else TwoPhaseUpsample(block.pool)

    @staticmethod
    def style_norms(block: upstream.AdainResBlk1d) -> list[upstream.AdaIN1d]:
        """The norms of upstream's block in the order in which they are used."""
        return [block.norm1, block.norm2]

    def forward(self, x: Tensor, affines: Iterator[Affine], rate: Rate, out_rate: Rate) -> Tensor:
        """[1, C, 1, W] at ``rate`` to [1, C', 1, W'] at ``out_rate``, which is ``rate`` without upsampling."""
        y = F.leaky_relu(self.norm1(x, next(affines), rate), _BLOCK_SLOPE) * rate.mask
        if self.pool is not None:
            y = self.pool(y) * out_rate.mask
        y = self.conv1(y)
        y = F.leaky_relu(self.norm2(y, next(affines), out_rate), _BLOCK_SLOPE) * out_rate.mask
        y = self.conv2(y)
        # A pointwise convolution commutes with repetition: half the work when it comes first.
        shortcut = x * _HALF_ROOT if self.shortcut is None else self.shortcut(x)
        if self.pool is not None:
            shortcut = interleave([shortcut] * DECODE_RATE)
        return y + shortcut


class InverseSTFT(nn.Module):
    """Magnitude and phase to samples; see :mod:`kokoro_npu.istft`.

    Args:
        bucket: the static size.
        gains: factors on the real and the imaginary part of each bin, [22]; ones unless given.
    """

    def __init__(self, bucket: Bucket, gains: Tensor | None = None) -> None:
        super().__init__()
        kernel = synthesis_kernel()
        self.synthesis = kernel_conv(kernel if gains is None else kernel * gains[:, None])
        self.edge = kernel_conv(edge_kernel())
        self.bucket = bucket

    def forward(self, magnitude: Tensor, phase: Tensor, mask: Tensor) -> Tensor:
        """Magnitude (zero on padding) and phase [1, 11, R, W], mask [1, 1, R, W], to audio [1, 600 T]."""
        spectrum = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=1)
        hops = self.synthesis(with_halo(spectrum, *SYNTHESIS_PADDING)) * self.edge(with_halo(mask, *SYNTHESIS_PADDING))
        # [1, 5, R, W] to samples in order: the layout of a channels-last convolution, so free on HTP.
        return hops.permute(0, 2, 3, 1).reshape(1, HOP * self.bucket.noise_steps)[:, : self.bucket.samples]


_HALF_TURNS = (-1, 0, 1, -1, 0, 0, 0, -1, 0, 0, 0)
_LOG_MAGNITUDES = (0.4, 0.5, 2.3, -2.4, -2.1, -1.7, 1.0, -1.1, -1.6, -1.7, -1.9)
"""Where each bin is loudest in Kokoro v1.0: sine's argument in units of pi, and the exponent."""


class Head(nn.Module):
    """From the generator's last features to audio: the part that quantization leaves floating.

    An 8-bit head costs six decibels (design §5), and holds next to no weights.

    In half precision most of the decoder's error is made here: bin 2 is a hundred times louder than the audio, and all
    but its changes cancel in the overlapping windows, so that the last bit of its exponent and of its phase is heard.
    So both are computed as the distance from where they mostly are, and what is left out is put into the synthesis:
    exp(l) = exp(c) exp(l - c); and sin(p) = (-1)^k sin(p - k pi), a sign that cosine loses and sine keeps.
    """

    def __init__(self, conv_post: nn.Conv1d, gain: float, bucket: Bucket, rows: int) -> None:
        super().__init__()
        # Two convolutions, because the split of one would be a wide slice.
        self.post_magnitude = RowConv(conv_post, rows, slice(0, STFT_BINS), gain)
        self.post_phase = RowConv(conv_post, rows, slice(STFT_BINS, None), gain)
        turns, logs = torch.tensor(_HALF_TURNS), torch.tensor(_LOG_MAGNITUDES)
        for conv, offset in ((self.post_magnitude.conv, logs), (self.post_phase.conv, math.pi * turns)):
            assert conv.bias is not None
            conv.bias.data -= offset
        signs = (-1.0) ** turns
        self.inverse_stft = InverseSTFT(bucket, torch.cat([logs.exp(), logs.exp() * signs]))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """X [1, 128, R, W], zero on padding, and mask [1, 1, R, W] to audio [1, 600 T]."""
        magnitude = torch.exp(self.post_magnitude(x)) * mask
        return self.inverse_stft(magnitude, torch.sin(self.post_phase(x)), mask)


class StaticGenerator(nn.Module):
    """The iSTFTNet generator at the rates 2, 20 and 120 columns a frame."""

    def __init__(self, generator: upstream.Generator, bucket: Bucket, rows: int) -> None:
        super().__init__()
        self.blocks_per_rate = count = generator.num_kernels
        self.noise_convs = nn.ModuleList(NoiseConv(conv, rows, STEP_PADDING) for conv in generator.noise_convs)
        rows_at = [1] * (len(generator.ups) - 1) + [rows]
        self.noise_res = nn.ModuleList(map(MaskedResBlock, generator.noise_res, rows_at))
        # A rate's residual blocks are averaged. Leaky ReLU keeps the factor, and the next weights take it.
        gain = 1 / count
        *ups, last = generator.ups
        self.ups = nn.ModuleList(scaled(conv_transpose2d(up), gain if i else 1.0) for i, up in enumerate(ups))
        self.ups.append(LastUpsample(last, rows, STEP_PADDING, gain))
        self.resblocks = nn.ModuleList(
            MaskedResBlock(block, rows_at[i // count]) for i, block in enumerate(generator.resblocks)
        )
        self.head = Head(generator.conv_post, gain, bucket, rows)

    @staticmethod
    def style_norms(generator: upstream.Generator) -> list[list[upstream.AdaIN1d]]:
        """For each rate upstream's norms in the order in which they are used."""
        count = generator.num_kernels
        blocks = [
            [source, *generator.resblocks[i * count : (i + 1) * count]] for i, source in enumerate(generator.noise_res)
        ]
        return [[norm for block in group for norm in MaskedResBlock.style_norms(block)] for group in blocks]

    def forward(self, x: Tensor, affines: list[Iterator[Affine]], noise: Tensor, rates: list[Rate]) -> Tensor:
        """X [1, 512, 1, 2 T], noise [1, 22, R, (120 T + 8) / R] to audio [1, 600 T].

        ``rates`` has those of 2, 20 and 120 columns a frame, ``affines`` those of the last two.
        """
        for i, up in enumerate(self.ups):
            before, after = rates[i], rates[i + 1]
            x = F.leaky_relu(x, _GENERATOR_SLOPE) * before.mask
            source = self.noise_res[i](self.noise_convs[i](noise), affines[i], after)
            x = up(x) + source
            blocks = self.resblocks[i * self.blocks_per_rate : (i + 1) * self.blocks_per_rate]
            total = blocks[0](x, affines[i], after)
            for block in blocks[1:]:
                total = total + block(x, affines[i], after)
            x = total
        final = rates[-1]
        return self.head(F.leaky_relu(x, _POST_SLOPE) * final.mask, final.mask)


class StaticDecoder(nn.Module):
    """Features of one bucket to audio.

    Inputs and output are those of :class:`kokoro_npu.geometry.Bucket`; the host zeroes whatever lies right of
    the real frames.

    Args:
        decoder: upstream's decoder with its weight norm removed.
        bucket: the static size.
        rows: of the last rate; those that the bucket's width demands, unless given.
    """

    def __init__(self, decoder: upstream.Decoder, bucket: Bucket, rows: int | None = None) -> None:
        super().__init__()
        self.bucket = bucket
        self.rows = bucket.rows if rows is None else rows
        self.f0_conv = conv2d(decoder.F0_conv)
        self.energy_conv = conv2d(decoder.N_conv)
        self.asr_res = conv2d(decoder.asr_res[0])
        self.encode = MaskedStyleBlock(decoder.encode)
        self.decode = nn.ModuleList(MaskedStyleBlock(block) for block in decoder.decode)
        self.generator = StaticGenerator(decoder.generator, bucket, self.rows)
        style_blocks = [decoder.encode, *decoder.decode]
        norms = [norm for block in style_blocks for norm in MaskedStyleBlock.style_norms(block)]
        styles = [StyleProjections(group) for group in [norms, *StaticGenerator.style_norms(decoder.generator)]]
        self.styles = nn.ModuleList(styles)
        self.affines = nn.ModuleList(AffineSplit(projections.channels) for projections in styles)
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
        aligned, f0, energy, mask = (_columns(x) for x in (aligned_features, f0_contour, energy, frame_mask))
        noise = _columns(noise, self.rows)
        rates, inverse_roots = self._rates(mask, frame_ratio)
        style = _columns(ref_style.unsqueeze(2))
        affines, *generator_affines = (
            split(*project(style, root))
            for project, split, root in zip(self.styles, self.affines, inverse_roots, strict=True)
        )
        f0 = self.f0_conv(f0)
        energy = self.energy_conv(energy)
        residual = self.asr_res(aligned)
        x = self.encode(torch.cat([aligned, f0, energy], dim=1), affines, rates[0], rates[0])
        for block in self.decode:
            out_rate = rates[0] if block.pool is None else rates[1]
            x = block(torch.cat([x, residual, f0, energy], dim=1), affines, rates[0], out_rate)
        return self.generator(x, generator_affines, noise, rates[1:])

    def _rates(self, mask: Tensor, frame_ratio: Tensor) -> tuple[list[Rate], list[Tensor]]:
        """Masks and ratios at 1, 2, 20 and 120 columns a frame, the last with the STFT's extra column.

        And one over the ratios' roots for the style blocks and for the generator's two rates.
        """
        ratio, root, inverse, *of_steps = _columns(frame_ratio.unsqueeze(2)).split(1, dim=1)
        masks = [mask]
        for factor in (DECODE_RATE, *UPSAMPLE_RATES[:-1]):
            masks.append(interleave([masks[-1]] * factor))
        steps = last_mask(masks[-1], UPSAMPLE_RATES[-1], self.rows, STEP_PADDING)
        step_ratio, step_root, step_inverse = of_steps
        rates = [Rate(mask, mask * root, ratio) for mask in masks]
        return [*rates, Rate(steps, steps * step_root, step_ratio)], [inverse, inverse, step_inverse]


def _columns(x: Tensor, rows: int = 1) -> Tensor:
    """An input [1, C, W] as [1, C, R, W / R].

    The pooling of single columns changes nothing, but is an op that has a layout: it is brought into HTP's once, where
    otherwise each user of the input would get a transpose of its own.
    """
    return F.max_pool2d(x.reshape(1, x.shape[1], rows, -1), 1)
