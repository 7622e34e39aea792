"""Features and reference audio of the corpus, kept as files that every later stage shares."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from kokoro import KModel
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

from kokoro_npu import reference
from kokoro_npu.corpus import EVALUATION, Utterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic, read_json, write_json
from kokoro_npu.frontend import Frontend, tokenize, voice_row
from kokoro_npu.geometry import Bucket
from kokoro_npu.runtime import Array
from kokoro_npu.torch_cpu import set_up_torch
from kokoro_npu.wav import write_wav

_MANIFEST = "manifest.json"
_REFERENCE = "reference_audio"
_TOKENS = "tokens"
_VOICE = "voice_embedding"


@dataclass(frozen=True)
class Recorded:
    """One utterance of the corpus as it was recorded.

    Attributes:
        id: its name in the corpus.
        part: ``calibration`` or ``evaluation``.
        frames: L.
        speed: divides durations.
        duration_mismatches: tokens whose duration differs between the ONNX model and PyTorch.
        features: unpadded decoder inputs, as in :class:`kokoro_npu.frontend.Prepared`.
        reference: [600 L] float32, audio of upstream's whole PyTorch model, unpadded, with the same source.
        tokens: [1, S] int64.
        voice: [1, 256] float32.
    """

    id: str
    part: str
    frames: int
    speed: float
    duration_mismatches: int
    features: dict[str, Array]
    reference: Array
    tokens: npt.NDArray[np.int64]
    voice: Array


def record(
    corpus: Sequence[Utterance],
    model: KModel,
    voices: Mapping[str, Array],
    frontend: Frontend,
    out_dir: Path,
    seed: int,
) -> dict[str, Any]:
    """Run the corpus through the CPU models and through upstream's PyTorch model, and keep both.

    Args:
        corpus: what to say.
        model: upstream's model.
        voices: name to voice pack [510, 256].
        frontend: the ONNX models.
        out_dir: gets ``<id>.safetensors``, ``<id>.wav`` (the reference, to listen to) and a manifest.
        seed: of the source's noise; each utterance draws its own from it and its id.

    Returns:
        A flat report: utterances by part, seconds, and tokens whose durations differ from PyTorch's.
    """
    set_up_torch()
    entries = []
    for utterance in tqdm(corpus, desc="features", unit="utterance"):
        where = f"utterance {utterance.id}"
        tokens = tokenize(utterance.phonemes, model.vocab, where)
        voice = voice_row(voices, utterance.voice, utterance.phonemes)
        rng = np.random.default_rng([seed, crc32(utterance.id.encode())])
        prepared = frontend.prepare(tokens, voice, utterance.speed, rng)
        audio, durations = reference.synthesize(
            model, tokens, voice, utterance.speed, prepared.features["noise"], prepared.frames
        )
        tensors = {**prepared.features, _REFERENCE: audio, _TOKENS: tokens, _VOICE: voice}
        with atomic(out_dir / f"{utterance.id}.safetensors") as tmp:
            save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, tmp)
        write_wav(out_dir / f"{utterance.id}.wav", audio)
        entries.append(
            {
                "id": utterance.id,
                "part": utterance.part,
                "frames": prepared.frames,
                "speed": float(utterance.speed),
                "duration_mismatches": int((durations != prepared.durations[0]).sum()),
            }
        )
    write_json(out_dir / _MANIFEST, entries)
    evaluation = [entry for entry in entries if entry["part"] == EVALUATION]
    return {
        "utterances": len(entries),
        "evaluation_utterances": len(evaluation),
        "calibration_utterances": len(entries) - len(evaluation),
        "frames": sum(entry["frames"] for entry in entries),
        "duration_mismatches": sum(entry["duration_mismatches"] for entry in entries),
    }


def load_recorded(features_dir: Path | str, part: str) -> Iterator[Recorded]:
    """The recorded utterances of one part, shortest first.

    Raises:
        KokoroNpuError: nothing was recorded.
    """
    directory = Path(features_dir)
    if not (directory / _MANIFEST).is_file():
        raise KokoroNpuError(f"{directory} holds no {_MANIFEST}: run the stage `features`")
    entries = [entry for entry in read_json(directory / _MANIFEST) if entry["part"] == part]
    for entry in sorted(entries, key=lambda entry: (entry["frames"], entry["id"])):
        tensors = load_file(directory / f"{entry['id']}.safetensors")
        yield Recorded(
            **entry,
            reference=tensors.pop(_REFERENCE),
            tokens=tensors.pop(_TOKENS),
            voice=tensors.pop(_VOICE),
            features=tensors,
        )


def longest_fitting(recorded: Sequence[Recorded], bucket: Bucket) -> Recorded:
    """The utterance that fills a bucket most; for a bucket too small for any, the shortest."""
    fitting = [item for item in recorded if item.frames <= bucket.frames]
    if not fitting:
        return min(recorded, key=lambda item: item.frames)
    return max(fitting, key=lambda item: item.frames)
