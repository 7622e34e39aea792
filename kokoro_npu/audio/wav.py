"""Audio files at the model's sample rate."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from kokoro_npu.files import atomic
from kokoro_npu.geometry import SAMPLE_RATE


def write_wav(path: Path | str, audio: npt.NDArray[np.float32]) -> None:
    """Write mono audio [N] in -1 to 1 as 16-bit PCM at 24 kHz, atomically; louder samples are clipped."""
    with atomic(path) as tmp:
        soundfile.write(tmp, audio, SAMPLE_RATE, subtype="PCM_16")


def read_wav(path: Path | str) -> npt.NDArray[np.float32]:
    """Mono audio [N] float32 of a file that `write_wav` wrote."""
    audio, _ = soundfile.read(path, dtype="float32")
    return audio
