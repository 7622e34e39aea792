"""The static decoder: Kokoro's decoder for a fixed number of frames, exact at any padding.

Every tensor is [1, channels, rows, width] so that the compiler sees two-dimensional convolutions and inserts no
reshapes; there is one row, but at the last rate of all but the shortest buckets, where time is folded
(:mod:`kokoro_npu.model.folding`). Padding is dealt with in two places only: it is zeroed just before every convolution,
as zero padding would have been, and the instance norms count real frames alone. The rewrites that Hexagon needs are
part of the module: depthwise upsampling in two phases, squares as products, the reciprocals of lengths as an input,
nearest upsampling as an interleave. So are those that only save it operations: all style projections in a few matrix
products, their results as the norm op's own scale and shift, constant factors inside the weights, inputs brought into
its layout once.

Source: ``kokoro.istftnet`` 0.9.4 (``Decoder``, ``Generator``); its blocks are in :mod:`kokoro_npu.model.blocks`.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from kokoro import istftnet as upstream
from torch import Tensor, nn

from kokoro_npu.geometry import DECODE_RATE, HOP, STEP_PADDING, STFT_BINS, UPSAMPLE_RATES, Bucket
from kokoro_npu.model.blocks import (
    Affine,
    AffineSplit,
    MaskedResBlock,
    MaskedStyleBlock,
    Rate,
    RateMask,
    StyleProjections,
)
from kokoro_npu.model.convs import conv2d, conv_transpose2d, interleave, kernel_conv, scaled
from kokoro_npu.model.folding import FoldedConv, LastUpsample, NoiseConv, last_mask, with_halo
from kokoro_npu.model.istft import SYNTHESIS_PADDING, edge_kernel, synthesis_kernel

_GENERATOR_SLOPE = 0.1
_POST_SLOPE = 0.01


class InverseSTFT(nn.Module):
    """Magnitude and phase to samples; see :mod:`kokoro_npu.model.istft`.

    Args:
        bucket: the static size.
        gains: factors on the real and the imaginary part of each bin, [22].
    """

    def __init__(self, bucket: Bucket, gains: Tensor) -> None:
        super().__init__()
        self.synthesis = kernel_conv(synthesis_kernel() * gains[:, None])
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

    An 8-bit head would cost six decibels, and it holds next to no weights.

    In half precision most of the decoder's error is made here: bin 2 is a hundred times louder than the audio, and all
    but its changes cancel in the overlapping windows, so that the last bit of its exponent and of its phase is heard.
    So both are computed as the distance from where they mostly are, and what is left out is put into the synthesis:
    exp(l) = exp(c) exp(l - c); and sin(p) = (-1)^k sin(p - k pi), a sign that cosine loses and sine keeps.
    """

    def __init__(self, conv_post: nn.Conv1d, gain: float, bucket: Bucket, rows: int) -> None:
        super().__init__()
        # Two convolutions, because the split of one would be a wide slice.
        self.post_magnitude = FoldedConv(conv_post, rows, slice(0, STFT_BINS), gain)
        self.post_phase = FoldedConv(conv_post, rows, slice(STFT_BINS, None), gain)
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


class Columns(nn.Module):
    """An input [1, C, W] as [1, C, R, W / R].

    The pooling of single columns changes nothing, but is an op that has a layout: it is brought into HTP's once, where
    otherwise each user of the input would get a transpose of its own.

    A module of its own, as :class:`Join`, so that its ops have the same names in every bucket: recipes go by names.

    Args:
        rows: R.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        """[1, C, W] to [1, C, R, W / R]."""
        return F.max_pool2d(x.reshape(1, x.shape[1], self.rows, -1), 1)


class Join(nn.Module):
    """What enters a style block, one beneath the other."""

    def forward(self, *parts: Tensor) -> Tensor:
        """[1, C, 1, W] each, to the sum of their channels."""
        return torch.cat(parts, dim=1)


class StaticDecoder(nn.Module):
    """Features of one bucket to audio.

    Inputs and output are those of :class:`kokoro_npu.geometry.Bucket`; the host zeroes whatever lies right of
    the real frames.

    Args:
        decoder: upstream's decoder with its weight norm removed.
        bucket: the static size.
        rows: into which time is folded at the last rate; ``bucket.rows`` unless given.
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
        self.rates = nn.ModuleList(RateMask() for _ in range(2 + len(UPSAMPLE_RATES)))
        rows_of = dict.fromkeys(bucket.input_shapes, 1) | {"noise": self.rows}
        self.columns = nn.ModuleDict({name: Columns(count) for name, count in rows_of.items()})
        self.joins = nn.ModuleList(Join() for _ in style_blocks)
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
        aligned = self.columns["aligned_features"](aligned_features)
        f0 = self.columns["f0_contour"](f0_contour)
        energy = self.columns["energy"](energy)
        mask = self.columns["frame_mask"](frame_mask)
        noise = self.columns["noise"](noise)
        rates, inverse_roots = self._rates(mask, frame_ratio)
        style = self.columns["ref_style"](ref_style.unsqueeze(2))
        affines, *generator_affines = (
            split(*project(style, root))
            for project, split, root in zip(self.styles, self.affines, inverse_roots, strict=True)
        )
        f0 = self.f0_conv(f0)
        energy = self.energy_conv(energy)
        residual = self.asr_res(aligned)
        first, *joins = self.joins
        x = self.encode(first(aligned, f0, energy), affines, rates[0], rates[0])
        for join, block in zip(joins, self.decode, strict=True):
            out_rate = rates[0] if block.pool is None else rates[1]
            x = block(join(x, residual, f0, energy), affines, rates[0], out_rate)
        return self.generator(x, generator_affines, noise, rates[1:])

    def _rates(self, mask: Tensor, frame_ratio: Tensor) -> tuple[list[Rate], list[Tensor]]:
        """Masks and ratios at 1, 2, 20 and 120 columns a frame, the last with the STFT's extra column.

        And one over the ratios' roots for the style blocks and for the generator's two rates.
        """
        ratio, root, inverse, *of_steps = self.columns["frame_ratio"](frame_ratio.unsqueeze(2)).split(1, dim=1)
        masks = [mask]
        for factor in (DECODE_RATE, *UPSAMPLE_RATES[:-1]):
            masks.append(interleave([masks[-1]] * factor))
        steps = last_mask(masks[-1], UPSAMPLE_RATES[-1], self.rows, STEP_PADDING)
        step_ratio, step_root, step_inverse = of_steps
        roots, ratios = [*[root] * len(masks), step_root], [*[ratio] * len(masks), step_ratio]
        rates = [make(*parts) for make, *parts in zip(self.rates, [*masks, steps], roots, ratios, strict=True)]
        return rates, [inverse, inverse, step_inverse]
