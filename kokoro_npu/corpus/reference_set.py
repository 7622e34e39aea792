"""The reference set: decoder inputs and reference audio of the corpus, as the files that stages share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json
from kokoro_npu.geometry import Array, Bucket

CALIBRATION = "calibration"
"""The part that sets the ranges of the quantized decoder."""
EVALUATION = "evaluation"
"""The part that is measured and gated."""

MANIFEST = "manifest.json"
REFERENCE = "reference_audio"
TOKENS = "tokens"
VOICE = "voice_embedding"


@dataclass(frozen=True)
class ReferenceUtterance:
    """One utterance of the corpus as it was recorded.

    Attributes:
        id: its name in the corpus.
        frames: L.
        speed: divides durations.
        duration_mismatches: tokens whose duration differs between the ONNX model and PyTorch.
        features: unpadded decoder inputs, as in :class:`kokoro_npu.host.frontend.Prepared`.
        reference: [600 L] float32, audio of upstream's whole PyTorch model, unpadded, with the same source.
        tokens: [1, S] int64.
        voice: [1, 256] float32.
    """

    id: str
    frames: int
    speed: float
    duration_mismatches: int
    features: dict[str, Array]
    reference: Array
    tokens: npt.NDArray[np.int64]
    voice: Array


def load_reference_set(directory: Path, part: str) -> Iterator[ReferenceUtterance]:
    """The utterances of one part (``calibration`` or ``evaluation``) of the set in a directory, shortest first.

    Raises:
        KokoroNpuError: nothing was recorded.
    """
    if not (directory / MANIFEST).is_file():
        raise KokoroNpuError(f"{directory} holds no {MANIFEST}: run the stage `reference-set`")
    entries = [entry for entry in read_json(directory / MANIFEST) if entry.pop("part") == part]
    for entry in sorted(entries, key=lambda entry: (entry["frames"], entry["id"])):
        tensors = load_file(directory / f"{entry['id']}.safetensors")
        yield ReferenceUtterance(
            **entry,
            reference=tensors.pop(REFERENCE),
            tokens=tensors.pop(TOKENS),
            voice=tensors.pop(VOICE),
            features=tensors,
        )


def longest_fitting(recorded: Sequence[ReferenceUtterance], bucket: Bucket) -> ReferenceUtterance:
    """The utterance that fills a bucket most; for a bucket too small for any, the shortest."""
    fitting = [item for item in recorded if item.frames <= bucket.frames]
    return max(fitting, key=lambda item: item.frames) if fitting else min(recorded, key=lambda item: item.frames)
