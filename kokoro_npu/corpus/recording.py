"""Records the reference set: the corpus through the CPU models and through upstream's PyTorch model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kokoro import KModel
from safetensors.numpy import save_file
from tqdm import tqdm

from kokoro_npu.audio.wav import write_wav
from kokoro_npu.corpus.reference_set import EVALUATION, MANIFEST, REFERENCE, TOKENS, VOICE
from kokoro_npu.corpus.utterances import Utterance
from kokoro_npu.files import atomic, write_json
from kokoro_npu.geometry import Array
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.host.source_noise import corpus_noise
from kokoro_npu.host.tokens import tokenize, voice_row
from kokoro_npu.model import reference
from kokoro_npu.model.torch_cpu import set_up_torch


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
    for utterance in tqdm(corpus, desc="reference set", unit="utterance"):
        where = f"utterance {utterance.id}"
        tokens = tokenize(utterance.phonemes, model.vocab, where)
        voice = voice_row(voices, utterance.voice, utterance.phonemes)
        prepared = frontend.prepare(tokens, voice, utterance.speed, corpus_noise(seed, utterance.id))
        audio, durations = reference.synthesize(
            model, tokens, voice, utterance.speed, prepared.features["noise"], prepared.frames
        )
        tensors = {**prepared.features, REFERENCE: audio, TOKENS: tokens, VOICE: voice}
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
    write_json(out_dir / MANIFEST, entries)
    evaluation = [entry for entry in entries if entry["part"] == EVALUATION]
    return {
        "utterances": len(entries),
        "evaluation_utterances": len(evaluation),
        "calibration_utterances": len(entries) - len(evaluation),
        "frames": sum(entry["frames"] for entry in entries),
        "duration_mismatches": sum(entry["duration_mismatches"] for entry in entries),
    }
