"""The exact inverse STFT as two convolutions, and the forward STFT of the source.

``torch.istft`` with n_fft 20, hop 5, a periodic Hann window and ``center=True`` is a sum of overlapping windowed
frames divided by the sum of the overlapping squared windows. Between the edges that sum is constant; over the first and
the last hop one frame is missing from it. Both are linear in quantities that a static graph has: the spectrum and the
frame mask. Upstream's ``CustomSTFT.inverse`` leaves out the one-sided doubling and the normalisation, which
colours the sound (-2.5 dB at 2.4-9.6 kHz), so it is not used here.
"""

import math

import torch
from torch import Tensor

from kokoro_npu.geometry import HOP, N_FFT, STFT_BINS

_TAPS = N_FFT // HOP
"""Frames that overlap in one hop."""

SYNTHESIS_PADDING = (1, _TAPS - 2)
"""Columns of zero padding (left, right) that align output hop ``s`` with frames ``s-1 .. s+2`` (``center=True``)."""


def hann_window() -> Tensor:
    """Periodic Hann window, [20] float64."""
    return torch.hann_window(N_FFT, periodic=True, dtype=torch.float64)


def _overlap_sum(window: Tensor) -> float:
    """The constant sum of overlapping squared windows away from the edges (1.5 for Hann at a quarter hop)."""
    return float(window.square().sum() / HOP)


def _bases() -> tuple[Tensor, Tensor]:
    """Cosine and negative sine of each bin, [11, 20] float64."""
    bins = torch.arange(STFT_BINS, dtype=torch.float64)[:, None]
    samples = torch.arange(N_FFT, dtype=torch.float64)[None, :]
    angle = 2 * math.pi * bins * samples / N_FFT
    return torch.cos(angle), -torch.sin(angle)


def synthesis_kernel() -> Tensor:
    """Weights of the inverse STFT in polyphase form, [5, 22, 4] float32.

    A convolution of [real; imaginary] ([1, 22, W], 11 bins each) with this kernel and ``SYNTHESIS_PADDING`` gives
    [1, 5, W], whose column ``s`` holds the samples ``5 s .. 5 s + 4`` of the centred, normalised inverse. DC and
    Nyquist count once and the other bins twice because the spectrum is one-sided.
    """
    window = hann_window()
    sided = torch.full((STFT_BINS, 1), 2.0, dtype=torch.float64)
    sided[0] = sided[-1] = 1.0
    scale = sided * window / (N_FFT * _overlap_sum(window))
    basis = torch.cat([base * scale for base in _bases()])
    # Sample n of frame f lands in hop f - 2 + n // 5 of the trimmed output: tap q of the convolution sees frame
    # s - 1 + q, whose samples 5 (3 - q) .. 5 (3 - q) + 4 fall into hop s.
    taps = basis.reshape(2 * STFT_BINS, _TAPS, HOP).flip(1)
    return taps.permute(2, 0, 1).to(torch.float32).contiguous()


def edge_kernel() -> Tensor:
    """Weights that turn the frame mask into the edge correction of the normalisation, [5, 1, 4] float32.

    A convolution of the generator-rate mask ([1, 1, W], 1 for the 120 L + 1 real frames) with this kernel and
    ``SYNTHESIS_PADDING`` gives, in the layout of :func:`synthesis_kernel`, 1 everywhere but in the first and the last
    real hop, where the true sum of squared windows lacks one frame.
    """
    window = hann_window()
    full = _overlap_sum(window)
    squared = window.square()
    start = full / (full - squared[-HOP:]) - 1
    end = full / (full - squared[:HOP]) - 1
    # Taps see frames s-1, s, s+1, s+2. All real: 1. The first hop has no frame before it (zero padding): 1 + start.
    # The last hop, 120 L - 1, has no frame two after it: 1 + end. The hop after the last is 0.
    return torch.stack([-start, start, 1 + end, -end], dim=1)[:, None, :].to(torch.float32).contiguous()


def analysis_kernels() -> tuple[Tensor, Tensor]:
    """Real and imaginary bases of the forward STFT, each [11, 1, 20] float32, for a stride of 5.

    The imaginary parts of DC and Nyquist are exact zeros: computed sines leave +-1e-17 there, whose sign would
    make the phase of a negative real bin jump between pi and -pi, where ``torch.angle`` gives pi.
    """
    real, imaginary = (base * hann_window() for base in _bases())
    imaginary[0] = imaginary[-1] = 0.0
    return real[:, None, :].to(torch.float32), imaginary[:, None, :].to(torch.float32)
