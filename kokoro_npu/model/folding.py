"""Time folding, for buckets whose last rate is wider than what HTP's compiler is quick at, or takes at all.

Time is folded into R rows: a tensor [1, C, 1, W] becomes [1, C, R, W / R], row after row in time. What works column by
column, or on whole channels, does not notice. A convolution does: each row is widened by its neighbours' columns, which
are copies, so that every output column is what it was. At R = 1 all of this is the plain layer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kokoro_npu.model.convs import channels_last_reshape, conv2d, conv_transpose2d, interleave, pointwise, scaled


class FoldedConv(nn.Module):
    """A "same" convolution over folded time, [1, C, R, W] to [1, C', R, W].

    Args:
        conv: upstream's, of stride 1.
        rows: R.
        channels: the part of its outputs that is kept.
        gain: factor on the weights.
    """

    def __init__(self, conv: nn.Conv1d, rows: int, channels: slice = slice(None), gain: float = 1.0) -> None:
        super().__init__()
        padding = int(conv.padding[0])
        self.halo = (padding, padding) if rows > 1 and padding else None
        self.conv = scaled(conv2d(conv, padding=0 if self.halo else padding, channels=channels), gain)

    def forward(self, x: Tensor) -> Tensor:
        """X is zero on padding."""
        return self.conv(x if self.halo is None else with_halo(x, *self.halo))


def with_halo(x: Tensor, left: int, right: int) -> Tensor:
    """[1, C, R, W] to [1, C, R, left + W + right]: beside each row the ends of its neighbours, or zeros."""
    if x.shape[2] == 1:
        return F.pad(x, (left, right))
    width = x.shape[3]
    parts = [x]
    if left:
        parts.insert(0, F.pad(x[:, :, :-1, width - left :], (0, 0, 1, 0)))
    if right:
        parts.append(F.pad(x[:, :, 1:, :right], (0, 0, 0, 1)))
    return torch.cat(parts, dim=3)


def unfolded(x: Tensor) -> Tensor:
    """[1, C, R, W] to [1, C, 1, R W]; in the channels-last layout of HTP nothing moves."""
    _, _, rows, width = x.shape
    return x if rows == 1 else channels_last_reshape(x, 1, rows * width)


def overlapping(x: Tensor, rows: int, left: int, right: int) -> Tensor:
    """[1, C, 1, W] to [1, C, R, left + W / R + right]: its pieces, with the columns before and after each, or zeros."""
    width = x.shape[3] // rows
    padded = F.pad(x, (left, right))
    return torch.cat([padded[..., width * h : width * (h + 1) + left + right] for h in range(rows)], dim=2)


def sheared(x: Tensor, start: int, step: int, width: int) -> Tensor:
    """[1, C, R, W] to [1, C, R, width]: row h from its column start + step h on."""
    pieces = [x[:, :, h : h + 1, start + step * h : start + step * h + width] for h in range(x.shape[2])]
    return torch.cat(pieces, dim=2)


class NoiseConv(nn.Module):
    """The source into a rate: [1, 22, R, (120 T + 8) / R] to [1, C, R', W'].

    Right padding is not needed: the 120 T + 8 columns reach beyond the last window.

    Args:
        conv: upstream's.
        rows: R.
        tail: columns beyond 120 T, 8.
    """

    def __init__(self, conv: nn.Conv1d, rows: int, tail: int) -> None:
        super().__init__()
        self.conv = conv2d(conv, padding=0)
        self.left = int(conv.padding[0])
        self.stride, self.taps = int(conv.stride[0]), int(conv.kernel_size[0])
        self.tail = tail // rows
        assert tail % rows == 0

    def forward(self, noise: Tensor) -> Tensor:
        """A rate of the noise's own columns stays folded, a lower one is [1, C, 1, W']."""
        rows, width = noise.shape[2:]
        if self.stride == 1:
            return self.conv(noise)
        if rows == 1:
            return self.conv(F.pad(noise, (self.left, 0)))
        # Row h of the noise begins tail h columns after the first that piece h of the output needs.
        shift = self.tail * (rows - 1)
        wide = with_halo(noise, self.left + shift, self.taps - self.stride - self.left)
        pieces = sheared(wide, shift, -self.tail, width - self.tail + self.taps - self.stride)
        return unfolded(self.conv(pieces))


class LastUpsample(nn.Module):
    """The transposed convolution into the last rate, [1, C, 1, W] to [1, C', R, (s W + tail) / R].

    With upstream's reflected column before the first and zeros after the last. At R > 1 the columns after the last are
    anything: they are padding.

    Args:
        up: upstream's.
        rows: R.
        tail: columns beyond s W, 8.
        gain: factor on the weights.
    """

    def __init__(self, up: nn.ConvTranspose1d, rows: int, tail: int, gain: float) -> None:
        super().__init__()
        self.rows, self.tail = rows, tail
        self.stride, self.padding = int(up.stride[0]), int(up.padding[0])
        self.up = scaled(conv_transpose2d(up, padding=self.padding if rows == 1 else 0), gain)
        self.reflected = _reflected_column(up, gain)
        self.register_buffer("end", torch.zeros(1, up.out_channels, 1, tail - 1), persistent=False)
        # Two inputs meet in each output, and the last row's shift must stay among those of the columns after its piece.
        assert int(up.kernel_size[0]) == 2 * self.stride
        assert self.padding - 1 + tail <= 2 * self.stride

    def forward(self, x: Tensor) -> Tensor:
        """X is zero on padding."""
        # One tap on input column 0: computed apart, nothing wide has to be sliced.
        first = self.reflected(x[..., :1])
        if self.rows == 1:
            return torch.cat([first, self.up(x), self.get_buffer("end")], dim=3)
        own = self.stride * x.shape[3] // self.rows
        shift = self.tail // self.rows
        # One input column before each piece: its outputs start stride + padding columns early.
        outputs = self.up(overlapping(x, self.rows, 1, 2))
        rows = sheared(outputs, self.stride + self.padding - 1, shift, own + shift)
        top = torch.cat([first, rows[:, :, :1, 1:]], dim=3)
        return torch.cat([top, rows[:, :, 1:]], dim=2)


def last_mask(mask: Tensor, factor: int, rows: int, tail: int) -> Tensor:
    """Mask [1, 1, 1, W] of the rate before to that of the last, [1, 1, R, (factor W + tail) / R].

    One column before the first, which is real, and ``tail - 1`` after the last, which are not.
    """
    # The column before the first is as real as the first.
    first = mask[..., :1]
    if rows == 1:
        return torch.cat([first, interleave([mask] * factor), mask.new_zeros(1, 1, 1, tail - 1)], dim=3)
    # No F.pad: behind one the tracer knows no shape, and what `interleave` computes of it stays in the graph as ops,
    # which shifts the numbers in the names of others. Encodings are found by names.
    extended = torch.cat([first, mask, mask.new_zeros(1, 1, 1, 2)], dim=3)
    width = mask.shape[3] // rows
    joined = torch.cat([extended[..., width * h : width * (h + 1) + 3] for h in range(rows)], dim=2)
    shift = tail // rows
    return sheared(interleave([joined] * factor), factor - 1, shift, factor * width + shift)


def _reflected_column(up: nn.ConvTranspose1d, gain: float) -> nn.Conv2d:
    """Output column 1 of ``up`` as a pointwise convolution of its input column 0.

    Output column j takes tap k of input i where j = stride i - padding + k. For j = 1 and i = 0 the tap is
    padding + 1; a second input would need a tap of at least ``stride`` more, or a column before the first.
    """
    tap = int(up.padding[0]) + 1
    assert tap < up.stride[0]
    assert up.bias is not None
    return pointwise(up.weight.detach()[:, :, tap].T * gain, up.bias)
