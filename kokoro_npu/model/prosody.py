"""The prosody model: aligned features to F0, energy and the source's STFT, on the CPU in float32.

The harmonic-plus-noise source stays off the NPU because its running phase and its atan2 do not survive half precision.
It is upstream's ``SineGen``, ``SourceModuleHnNSF`` and ``TorchSTFT.transform`` (kokoro 0.9.4) with three differences:
the Gaussian draws are an input; the nine harmonics' draws, which one linear layer adds up, are one draw scaled by that
layer's norm; and the running phase is kept in float64 and wrapped, where upstream's float32 has lost a
thirtieth of a radian after 45 s. Upstream's random initial phases have no effect: they are added to a sample that the
downsampling that follows never reads.
"""

import math

import torch
import torch.nn.functional as F
from kokoro import KModel
from kokoro import istftnet as upstream
from torch import Tensor, nn

from kokoro_npu.geometry import DECODE_RATE, HOP, N_FFT, NOISE_TAIL, SAMPLE_RATE, SAMPLES_PER_FRAME
from kokoro_npu.model.istft import analysis_kernels

OUTPUT_NAMES = ("f0_contour", "energy", "noise")
DYNAMIC_AXES = {
    "aligned_prosody": {2: "frames"},
    "source_noise": {2: "samples"},
    "f0_contour": {2: "f0_steps"},
    "energy": {2: "f0_steps"},
    "noise": {2: "noise_steps"},
}

SAMPLES_PER_F0 = SAMPLES_PER_FRAME // DECODE_RATE

_TINY = 1e-30


class Source(nn.Module):
    """F0 and Gaussian draws to the STFT of the excitation.

    Args:
        generator: upstream's generator, of which the source module's parameters are taken.
    """

    def __init__(self, generator: upstream.Generator) -> None:
        super().__init__()
        module = generator.m_source
        sines = module.l_sin_gen
        self.voiced_threshold = float(sines.voiced_threshold)
        self.sine_amp = float(sines.sine_amp)
        self.noise_std = float(sines.noise_std)
        weight = module.l_linear.weight.detach()
        harmonics = weight.shape[1]
        self.register_buffer("mix", weight.reshape(1, harmonics, 1))
        self.register_buffer("bias", module.l_linear.bias.detach().reshape(1, 1, 1))
        self.noise_gain = float(weight.norm())
        self.register_buffer("multiples", torch.arange(1, harmonics + 1, dtype=torch.float32).reshape(1, -1, 1))
        # Upstream interpolates the phase linearly between the centres of the F0 steps: back from a centre for the
        # first half of a step, on to the next one for the second.
        offset = (torch.arange(SAMPLES_PER_F0, dtype=torch.float64) + 0.5) / SAMPLES_PER_F0 - 0.5
        self.register_buffer("back", (offset.clamp(max=0) * SAMPLES_PER_F0).to(torch.float32))
        self.register_buffer("ahead", (offset.clamp(min=0) * SAMPLES_PER_F0).to(torch.float32))
        real, imaginary = analysis_kernels()
        self.register_buffer("analysis_real", real)
        self.register_buffer("analysis_imaginary", imaginary)

    def forward(self, f0: Tensor, source_noise: Tensor) -> Tensor:
        """F0 [1, 1, 2 L] in Hz and unit Gaussian draws [1, 1, 600 L] to [1, 22, 120 L + 1], magnitudes first."""
        magnitude, phase = self.analyse(self.excitation(f0, source_noise))
        return torch.cat([magnitude, phase], dim=1)

    def excitation(self, f0: Tensor, source_noise: Tensor) -> Tensor:
        """The source signal, [1, 1, 600 L]."""
        samples = f0.shape[2] * SAMPLES_PER_F0
        voiced_steps = (f0 > self.voiced_threshold).to(torch.float32)
        voiced = voiced_steps[..., None].expand(1, 1, f0.shape[2], SAMPLES_PER_F0).reshape(1, 1, samples)
        harmonics = torch.sin(self._phase(f0)) * self.sine_amp
        noise_amp = voiced * self.noise_std + (1 - voiced) * (self.sine_amp / 3)
        mixed = (harmonics * self.get_buffer("mix")).sum(dim=1, keepdim=True) * voiced
        return torch.tanh(mixed + self.get_buffer("bias") + noise_amp * self.noise_gain * source_noise)

    def _phase(self, f0: Tensor) -> Tensor:
        """Wrapped phase of each harmonic in radians, [1, 9, 600 L]."""
        exact = f0.to(torch.float64) * self.get_buffer("multiples") / SAMPLE_RATE
        exact = exact - torch.floor(exact)
        centres = torch.cumsum(exact, dim=2) * SAMPLES_PER_F0
        centres = (centres - torch.floor(centres)).to(torch.float32)
        cycles = exact.to(torch.float32)
        zero = torch.zeros_like(cycles[:, :, :1])
        # The signal's ends hold the phase of the outermost centres.
        before = torch.cat([zero, cycles[:, :, 1:]], dim=2)
        after = torch.cat([cycles[:, :, 1:], zero], dim=2)
        phase = (
            centres[..., None]
            + before[..., None] * self.get_buffer("back")
            + after[..., None] * self.get_buffer("ahead")
        )
        return phase.reshape(1, cycles.shape[1], f0.shape[2] * SAMPLES_PER_F0) * (2 * math.pi)

    def analyse(self, signal: Tensor) -> tuple[Tensor, Tensor]:
        """Centred STFT of [1, 1, 600 L]: magnitude and phase in (-pi, pi], each [1, 11, 120 L + 1]."""
        padded = F.pad(signal, (N_FFT // 2, N_FFT // 2), mode="reflect")
        real = F.conv1d(padded, self.get_buffer("analysis_real"), stride=HOP)
        imaginary = F.conv1d(padded, self.get_buffer("analysis_imaginary"), stride=HOP)
        return torch.sqrt(real * real + imaginary * imaginary), _angle(real, imaginary)


def _angle(real: Tensor, imaginary: Tensor) -> Tensor:
    """``torch.angle`` spelt out: ONNX has no Atan2, and the exporter's makes -pi of a negative real number."""
    slope = imaginary / torch.where(real == 0, torch.full_like(real, _TINY), real)
    turn = torch.where(imaginary >= 0, torch.full_like(real, math.pi), torch.full_like(real, -math.pi))
    return torch.atan(slope) + torch.where(real < 0, turn, torch.zeros_like(real))


class ProsodyModel(nn.Module):
    """Upstream's F0 and energy predictor together with the source.

    Args:
        model: upstream's model, weight norm removed.
    """

    def __init__(self, model: KModel) -> None:
        super().__init__()
        self.predictor = model.predictor
        self.source = Source(model.decoder.generator)
        self.eval()

    def forward(
        self, aligned_prosody: Tensor, prosody_style: Tensor, source_noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Predict F0 and energy, and make the source.

        Args:
            aligned_prosody: [1, 640, L] float32, prosody features repeated by durations.
            prosody_style: [1, 128] float32.
            source_noise: [1, 1, 600 L] float32, unit Gaussian draws.

        Returns:
            F0 in Hz [1, 1, 2 L], energy [1, 1, 2 L], noise [1, 22, 120 L + 8], its last `NOISE_TAIL`
            columns zero.
        """
        f0, energy = self.predictor.F0Ntrain(aligned_prosody, prosody_style)
        f0, energy = f0[:, None], energy[:, None]
        spectrum = self.source(f0, source_noise)
        return f0, energy, F.pad(spectrum, (0, NOISE_TAIL))
