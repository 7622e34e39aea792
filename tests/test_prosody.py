"""The source and the prosody model against upstream's, the random draws captured and given to both."""

import copy

import numpy as np
import pytest
import torch
from kokoro import KModel
from torch import Tensor

from kokoro_npu.audio import metrics
from kokoro_npu.geometry import GENERATOR_RATE, HOP, N_FFT, PROSODY_DIM, SAMPLES_PER_FRAME, STYLE_DIM, source_steps
from kokoro_npu.model.prosody import SAMPLES_PER_F0, ProsodyModel, Source


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Upstream's Gaussian draws, kept; a second run of upstream is given the first one's."""
    made: list[Tensor] = []
    original = torch.randn_like

    def recording(like: Tensor) -> Tensor:
        for earlier in made:
            if earlier.shape == like.shape:
                return earlier.to(like.dtype)
        made.append(original(like))
        return made[-1]

    monkeypatch.setattr(torch, "randn_like", recording)
    return made


def _upstream(model: KModel, f0: Tensor, dtype: torch.dtype) -> Tensor:
    """Upstream's excitation [1, 1, 600 L] at a precision, for F0 [1, 1, 2 L]."""
    generator = model.decoder.generator
    module = copy.deepcopy(generator.m_source).to(dtype)
    excitation, _, _ = module(generator.f0_upsamp(f0).transpose(1, 2).to(dtype))
    return excitation.transpose(1, 2)


def _one_channel(model: KModel, draws: Tensor) -> Tensor:
    """The nine harmonics' draws [1, N, 9] as the one draw [1, 1, N] that has the same effect."""
    weight = model.decoder.generator.m_source.l_linear.weight[0].to(draws.dtype)
    return ((draws @ weight) / weight.norm())[:, None].float()


def _contour(frames: int) -> Tensor:
    """A gliding voice with an unvoiced stretch, [1, 1, 2 L] in Hz."""
    steps = torch.arange(2 * frames)
    f0 = 180 + 60 * torch.sin(steps / 9)
    return torch.where((steps // 20) % 3 == 1, torch.zeros(()), f0)[None, None]


@torch.inference_mode()
def test_excitation_is_upstreams(narrow: KModel, draws: list[Tensor]) -> None:
    f0 = _contour(60)
    truth = _upstream(narrow, f0, torch.float64)
    ours = Source(narrow.decoder.generator).excitation(f0, _one_channel(narrow, draws[0]))
    assert ours.shape == truth.shape == (1, 1, 60 * SAMPLES_PER_FRAME)
    assert metrics.snr_db(truth.numpy(), ours.numpy()) >= 75
    # The ends, where the phase is extrapolated.
    for part in (slice(None, SAMPLES_PER_F0), slice(-SAMPLES_PER_F0, None)):
        assert metrics.snr_db(truth[0, 0, part].numpy(), ours[0, 0, part].numpy()) >= 60


@torch.inference_mode()
def test_the_phase_does_not_drift_where_upstreams_does(narrow: KModel, draws: list[Tensor]) -> None:
    """After 45 s ours is nearer to upstream in double precision than upstream in single precision is."""
    f0 = torch.full((1, 1, 2 * 1800), 217.3)
    truth = _upstream(narrow, f0, torch.float64)
    ours = Source(narrow.decoder.generator).excitation(f0, _one_channel(narrow, draws[0]))
    single = _upstream(narrow, f0, torch.float32)
    last_second = slice(-SAMPLES_PER_FRAME * 40, None)
    wanted, got, drifted = (x[0, 0, last_second].numpy() for x in (truth, ours, single))
    assert metrics.snr_db(wanted, got) > metrics.snr_db(wanted, drifted) + 4


@torch.inference_mode()
def test_one_draw_has_the_nine_draws_distribution(narrow: KModel) -> None:
    draws = torch.randn(1, 200_000, 9, generator=torch.Generator().manual_seed(0))
    combined = _one_channel(narrow, draws)
    assert abs(float(combined.std()) - 1) < 0.01


@torch.inference_mode()
def test_analysis_is_torchs_stft(narrow: KModel) -> None:
    source = Source(narrow.decoder.generator)
    signal = torch.randn(1, 1, 10 * SAMPLES_PER_FRAME, generator=torch.Generator().manual_seed(1))
    magnitude, phase = source.analyse(signal)
    window = torch.hann_window(N_FFT, periodic=True, dtype=torch.float64)
    truth = torch.stft(signal[0].double(), N_FFT, HOP, N_FFT, window=window, return_complex=True)
    assert magnitude.shape == phase.shape == truth.shape == (1, 11, GENERATOR_RATE * 10 + 1)
    got = magnitude * torch.exp(1j * phase)
    assert float((got - truth).abs().max() / truth.abs().max()) < 1e-6
    # The phase as a number, which the decoder's convolutions see. In the first column reflection makes every bin real:
    # the sign of a phase of pi is rounding noise there, upstream's too.
    difference = (phase.double() - truth.angle())[..., 1:].abs()
    assert float(difference.max()) < 1e-2
    assert float(difference.mean()) < 1e-5


@torch.inference_mode()
def test_real_bins_have_phase_zero_or_plus_pi(narrow: KModel) -> None:
    """DC and Nyquist of either sign: torch.angle gives +pi for a negative number, never -pi."""
    source = Source(narrow.decoder.generator)
    negatives = [0, 0]
    signal = torch.randn(1, 1, 4 * SAMPLES_PER_FRAME, generator=torch.Generator().manual_seed(2))
    for x in (signal, -signal, torch.full_like(signal, -0.5)):
        _, phase = source.analyse(x)
        stft = torch.stft(x[0], N_FFT, HOP, N_FFT, window=torch.hann_window(N_FFT), return_complex=True)
        for index, real_bin in enumerate((0, N_FFT // 2)):
            loud = stft[0, real_bin].abs() > 1e-4
            got = phase[0, real_bin][loud]
            negative = stft[0, real_bin].real[loud] < 0
            assert torch.equal(got, torch.where(negative, torch.pi, 0.0))
            negatives[index] += int(negative.sum())
    assert min(negatives) > 100


@torch.inference_mode()
def test_silence_has_magnitude_and_phase_zero(narrow: KModel) -> None:
    magnitude, phase = Source(narrow.decoder.generator).analyse(torch.zeros(1, 1, SAMPLES_PER_FRAME))
    assert torch.equal(magnitude, torch.zeros_like(magnitude))
    assert torch.equal(phase, torch.zeros_like(phase))


@torch.inference_mode()
def test_prosody_model_is_upstreams_predictor_and_the_source(narrow: KModel) -> None:
    generator = torch.Generator().manual_seed(0)
    frames = 11
    aligned = torch.randn(1, PROSODY_DIM, frames, generator=generator)
    style = 0.3 * torch.randn(1, STYLE_DIM, generator=generator)
    source_noise = torch.randn(1, 1, SAMPLES_PER_FRAME * frames, generator=generator)
    f0, energy, noise = ProsodyModel(narrow)(aligned, style, source_noise)
    their_f0, their_energy = narrow.predictor.F0Ntrain(aligned, style)
    assert torch.equal(f0[:, 0], their_f0)
    assert torch.equal(energy[:, 0], their_energy)
    assert bool((f0 > 10).any())
    assert bool((f0 < 10).any())
    assert noise.shape == (1, 22, GENERATOR_RATE * frames + 8)
    steps = source_steps(frames)
    assert torch.equal(noise[..., :steps], Source(narrow.decoder.generator)(f0, source_noise))
    assert np.abs(noise[..., steps:].numpy()).max() == 0
