"""One-dimensional layers of upstream as two-dimensional ones over [1, C, R, W], R rows of W columns."""

from typing import TypeVar

import torch
from torch import Tensor, nn

_Conv = TypeVar("_Conv", nn.Conv2d, nn.ConvTranspose2d)


def scaled(conv: _Conv, factor: float, *, bias: bool = False) -> _Conv:
    """The convolution with its weights multiplied, and its bias if asked for."""
    conv.weight.data *= factor
    if bias and conv.bias is not None:
        conv.bias.data *= factor
    return conv


def _filled(conv: _Conv, weight: Tensor, bias: Tensor | None = None) -> _Conv:
    """The convolution with copies of [.., .., taps] and of a bias."""
    conv.weight.data = weight.detach()[:, :, None, :].clone()
    if bias is not None:
        assert conv.bias is not None
        conv.bias.data = bias.detach().clone()
    return conv


def pointwise(weight: Tensor, bias: Tensor) -> nn.Conv2d:
    """A matrix [out, in] and its bias as a pointwise convolution over [1, in, 1, W]."""
    return _filled(nn.Conv2d(weight.shape[1], weight.shape[0], 1), weight[:, :, None], bias)


def kernel_conv(kernel: Tensor) -> nn.Conv2d:
    """A fixed kernel [out, in, taps] as a convolution without bias over [1, in, 1, W]."""
    return _filled(nn.Conv2d(kernel.shape[1], kernel.shape[0], (1, kernel.shape[2]), bias=False), kernel)


def conv2d(conv: nn.Conv1d, *, padding: int | None = None, channels: slice = slice(None)) -> nn.Conv2d:
    """A convolution over time; ``padding`` replaces its own, ``channels`` keeps a part of its outputs."""
    weight = conv.weight[channels]
    result = nn.Conv2d(
        conv.in_channels,
        weight.shape[0],
        (1, conv.kernel_size[0]),
        stride=(1, conv.stride[0]),
        padding=(0, int(conv.padding[0]) if padding is None else padding),
        dilation=(1, conv.dilation[0]),
        bias=conv.bias is not None,
    )
    return _filled(result, weight, None if conv.bias is None else conv.bias[channels])


def conv_transpose2d(conv: nn.ConvTranspose1d, *, padding: int | None = None) -> nn.ConvTranspose2d:
    """A transposed convolution over time; ``padding`` replaces its own."""
    result = nn.ConvTranspose2d(
        conv.in_channels,
        conv.out_channels,
        (1, conv.kernel_size[0]),
        stride=(1, conv.stride[0]),
        padding=(0, int(conv.padding[0]) if padding is None else padding),
    )
    return _filled(result, conv.weight, conv.bias)


def channels_last_reshape(x: Tensor, rows: int, width: int) -> Tensor:
    """[1, C, H, W] with its elements read in the order H, W, C as [1, C', rows, width].

    In the channels-last layout of HTP nothing moves: the transposes around the reshape are those that the change of
    layout brings, and cancel.
    """
    return x.permute(0, 2, 3, 1).reshape(1, rows, width, -1).permute(0, 3, 1, 2)


def interleave(columns: list[Tensor]) -> Tensor:
    """N tensors [1, C, R, W] to [1, C, R, N W] with their columns taking turns."""
    rows, width = columns[0].shape[2:]
    return channels_last_reshape(torch.cat(columns, dim=1), rows, len(columns) * width)
