"""Metrics of two waveforms, on signals whose answer is known."""

import math

import numpy as np
import pytest

from kokoro_npu.audio import metrics
from kokoro_npu.geometry import SAMPLE_RATE


def _noise(seed: int, count: int = SAMPLE_RATE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def _tone(hertz: float, amplitude: float = 1.0, count: int = SAMPLE_RATE) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * hertz * np.arange(count) / SAMPLE_RATE)


def test_equal_signals() -> None:
    x = _noise(0)
    assert metrics.snr_db(x, x) == math.inf
    assert metrics.waveform_corr(x, x) == pytest.approx(1)
    assert metrics.magspec_corr(x, x) == pytest.approx(1)
    assert metrics.logmel_mae(x, x) == 0
    assert set(metrics.band_energy_db(x, x).values()) == {0.0}


@pytest.mark.parametrize("gain_db", [-40.0, -20.0, -100.0])
def test_snr_of_a_known_error(gain_db: float) -> None:
    x = _noise(1).astype(np.float64)
    error = x * 10 ** (gain_db / 20)
    assert metrics.snr_db(x, x + error) == pytest.approx(-gain_db, abs=1e-6)
    assert metrics.snr_db(x.astype(np.float32), (x + error).astype(np.float32)) == pytest.approx(-gain_db, abs=0.1)


def test_snr_of_silence_and_of_what_is_no_number() -> None:
    silence, x = np.zeros(100, np.float32), _noise(0, 100)
    assert metrics.snr_db(x, silence) == 0
    assert metrics.snr_db(silence, x) == -math.inf
    broken = x.copy()
    broken[3] = np.nan
    assert math.isnan(metrics.snr_db(x, broken))
    assert math.isnan(metrics.waveform_corr(x, broken))


def test_correlations() -> None:
    x = _noise(2)
    assert metrics.waveform_corr(x, -3 * x + 1) == pytest.approx(-1)
    assert abs(metrics.waveform_corr(x, _noise(3))) < 0.02
    assert metrics.waveform_corr(x, np.zeros_like(x)) == 0
    # Magnitudes do not hear the sign, nor a gain.
    assert metrics.magspec_corr(x, -3 * x) == pytest.approx(1)
    assert metrics.magspec_corr(_tone(500), _tone(5000)) < 0.1


def test_logmel_of_a_gain_is_the_gain() -> None:
    x = _noise(4)
    assert metrics.logmel_mae(x, 2 * x) == pytest.approx(20 * math.log10(2), abs=1e-3)
    assert metrics.logmel_mae(x, x / 10) == pytest.approx(20, abs=1e-3)


def test_logmel_does_not_count_what_is_below_the_floor() -> None:
    x = _noise(5)
    quiet = np.concatenate([x, np.zeros_like(x)])
    hiss = quiet + 1e-6 * _noise(6, len(quiet))
    assert metrics.logmel_mae(quiet, hiss) < 0.01
    assert metrics.logmel_mae(quiet, quiet + 1e-2 * _noise(6, len(quiet))) > 5


@pytest.mark.parametrize(("hertz", "band"), [(100, "60-250"), (1_500, "1000-2400"), (11_000, "9600-12000")])
def test_band_energy_names_the_band(hertz: float, band: str) -> None:
    x = 0.1 * _noise(7)
    louder = metrics.band_energy_db(x + _tone(hertz), x + 2 * _tone(hertz))
    assert louder[band] == pytest.approx(6.02, abs=0.1)
    # The Hann window's leakage reaches other bands well below the noise.
    assert all(abs(value) < 0.5 for name, value in louder.items() if name != band)
    assert list(louder) == ["60-250", "250-1000", "1000-2400", "2400-4800", "4800-9600", "9600-12000"]


def test_spectrogram_of_a_tone_and_its_frames() -> None:
    magnitudes = metrics.magnitude_spectrogram(_tone(SAMPLE_RATE * 100 / metrics.N_FFT, count=4 * metrics.N_FFT))
    assert magnitudes.shape == (1 + 3 * metrics.N_FFT // metrics.HOP, metrics.N_FFT // 2 + 1)
    assert set(magnitudes.argmax(axis=1)) == {100}
    # A Hann window sums to half its length, and a sine puts half of it into one bin.
    np.testing.assert_allclose(magnitudes.max(axis=1), metrics.N_FFT / 4, rtol=1e-6)


@pytest.mark.parametrize(("count", "frames"), [(1, 1), (1024, 1), (1025, 2), (1280, 2), (1281, 3)])
def test_no_sample_is_left_out_of_the_spectrogram(count: int, frames: int) -> None:
    x = np.zeros(count, np.float32)
    x[-1] = 1
    magnitudes = metrics.magnitude_spectrogram(x)
    assert len(magnitudes) == frames
    if count not in (1,):  # a periodic Hann window is 0 at its first sample
        assert magnitudes[-1].max() > 0


def test_mel_filters_cover_the_band_once() -> None:
    filters = metrics._mel_filters()
    assert filters.shape == (metrics.MEL_BANDS, metrics.N_FFT // 2 + 1)
    assert (filters >= 0).all()
    # Every bin but the outermost lies under some triangle, and neighbours' slopes add up to one.
    inner = filters.sum(axis=0)[20:-20]
    assert inner.min() > 0
    assert inner.max() <= 1 + 1e-9
