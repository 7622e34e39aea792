"""How far one waveform is from another."""

from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kokoro_npu.geometry import SAMPLE_RATE

Signal = npt.NDArray[np.floating]

N_FFT = 1024
HOP = 256
MEL_BANDS = 80
MEL_FLOOR_DB = -80.0
BAND_EDGES_HZ = (60, 250, 1_000, 2_400, 4_800, 9_600, 12_000)
"""Edges of the bands whose energies are compared: the ones in which known inverse STFTs are off."""


def snr_db(reference: Signal, signal: Signal) -> float:
    """Energy of ``reference`` over the energy of the difference, in dB; inf for equal signals.

    Args:
        reference: [N], the truth.
        signal: [N].
    """
    error = float(np.sum(np.square(signal.astype(np.float64) - reference)))
    energy = float(np.sum(np.square(reference.astype(np.float64))))
    return float("inf") if error == 0 else 10 * float(np.log10(energy / error)) if energy else float("-inf")


def waveform_corr(reference: Signal, signal: Signal) -> float:
    """Pearson correlation of the samples; 0 where one of them is constant."""
    a, b = (x.astype(np.float64).ravel() - x.mean(dtype=np.float64) for x in (reference, signal))
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 0.0


def magspec_corr(reference: Signal, signal: Signal) -> float:
    """Pearson correlation of the magnitude spectrograms (1024-point Hann, hop 256)."""
    return waveform_corr(magnitude_spectrogram(reference), magnitude_spectrogram(signal))


def logmel_mae(reference: Signal, signal: Signal) -> float:
    """Mean absolute difference of the log-mel spectrograms in dB.

    80 bands from 0 to 12 kHz, powers floored at 80 dB below the loudest band of the reference, so that silence
    does not count.
    """
    powers = [np.square(magnitude_spectrogram(x)) @ _mel_filters().T for x in (reference, signal)]
    floor = float(powers[0].max()) * 10 ** (MEL_FLOOR_DB / 10)
    levels = [10 * np.log10(np.maximum(power, max(floor, 1e-30))) for power in powers]
    return float(np.mean(np.abs(levels[1] - levels[0])))


def band_energy_db(reference: Signal, signal: Signal) -> dict[str, float]:
    """Energy of ``signal`` over that of ``reference`` in each band of ``BAND_EDGES_HZ``, in dB by band name."""
    frequencies = np.fft.rfftfreq(N_FFT, 1 / SAMPLE_RATE)
    spectra = [np.square(magnitude_spectrogram(x)).sum(axis=0) for x in (reference, signal)]
    ratios = {}
    for low, high in pairwise(BAND_EDGES_HZ):
        band = (frequencies >= low) & (frequencies < high)
        before, after = (float(spectrum[band].sum()) for spectrum in spectra)
        ratios[f"{low}-{high}"] = 10 * float(np.log10(max(after, 1e-30) / max(before, 1e-30)))
    return ratios


def magnitude_spectrogram(signal: Signal) -> npt.NDArray[np.float64]:
    """[frames, 513] magnitudes of a 1024-point Hann STFT with hop 256; the end is padded with zeros."""
    count = 1 + max(0, -(-(len(signal) - N_FFT) // HOP))
    padded = np.zeros((count - 1) * HOP + N_FFT)
    padded[: len(signal)] = signal
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    magnitudes: npt.NDArray[np.float64] = np.abs(np.fft.rfft(frames * np.hanning(N_FFT + 1)[:-1], axis=1))
    return magnitudes


@lru_cache(maxsize=1)
def _mel_filters() -> npt.NDArray[np.float64]:
    """[80, 513] triangular filters, evenly spaced on the HTK mel scale."""

    def to_mel(hertz: Signal) -> npt.NDArray[np.float64]:
        return 2595 * np.log10(1 + hertz / 700)

    top = to_mel(np.array(SAMPLE_RATE / 2))
    edges = 700 * (10 ** (np.linspace(0, top, MEL_BANDS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(N_FFT, 1 / SAMPLE_RATE)[None]
    low, centre, high = (edges[i : i + MEL_BANDS, None] for i in range(3))
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling))
