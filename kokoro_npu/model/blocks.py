"""The static decoder's blocks: what upstream's have, with masked statistics and the ops that Hexagon computes rightly.

Source: ``kokoro.istftnet`` 0.9.4 (``AdaIN1d``, ``AdaINResBlock1``, ``AdainResBlk1d``).
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from kokoro import istftnet as upstream
from torch import Tensor, nn

from kokoro_npu.geometry import DECODE_RATE
from kokoro_npu.model.convs import conv2d, interleave, pointwise, scaled
from kokoro_npu.model.folding import FoldedConv

_INSTANCE_NORM_EPS = 1e-5
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


class RateMask(nn.Module):
    """A rate of its mask.

    A module of its own, so that the product has the same name in every bucket, folded or not: encodings go by names.
    """

    def forward(self, mask: Tensor, root: Tensor, ratio: Tensor) -> Rate:
        """Mask [1, 1, R, W], the ratio's root and the ratio [1, 1, 1, 1]."""
        return Rate(mask, mask * root, ratio)


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
        self.convs1 = nn.ModuleList(FoldedConv(conv, rows) for conv in block.convs1)
        self.convs2 = nn.ModuleList(FoldedConv(conv, rows) for conv in block.convs2)

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
