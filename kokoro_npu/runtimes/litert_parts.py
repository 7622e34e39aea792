"""The models before the decoder for LiteRT, as seed 2 has them: durations and features, then F0 and energy.

Both are static: a bucket of tokens and one of frames. They are judged output by output, because what follows them
multiplies errors: a duration that differs by a frame moves all that follows, and the source's phase is a running
sum of F0.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.audio.metrics import snr_db
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.host.steps import align, frame_ratio
from kokoro_npu.model.duration import OUTPUT_NAMES, DurationModel
from kokoro_npu.runtimes import litert
from kokoro_npu.runtimes.static_parts import StaticDuration, StaticProsody

PARTS = ("duration", "prosody")

_HALF_MODULES = ("AlbertTransformer_encoder",)
"""PL-BERT's one layer runs twelve times: in 8 bits it left the prosody features 24 dB, in half precision 35."""


def paths(directory: Path, precision: str) -> dict[str, Path]:
    """Part to its file of one precision."""
    return {part: directory / f"kokoro_{part}_{precision}.tflite" for part in PARTS}


def convert(model: KModel, tokens: int, bucket: Bucket, paths: dict[str, Path]) -> None:
    """Write both parts as float32 ``.tflite``.

    Args:
        model: upstream's model.
        tokens: static size of the duration model.
        bucket: static size of the prosody model.
        paths: part to file.
    """
    duration, prosody = StaticDuration(model, tokens), StaticProsody(model, bucket)
    litert.convert(duration, duration.example, paths["duration"])
    litert.convert(prosody, prosody.example, paths["prosody"])


def quantize(source: Mapping[str, Path], paths: Mapping[str, Path]) -> None:
    """Write both parts with 8-bit weights, but PL-BERT's in half precision.

    Args:
        source: part to its float32 file.
        paths: part to the file to write.
    """
    for part, path in paths.items():
        litert.quantize_weights(source[part], path, half_modules=_HALF_MODULES)


@torch.inference_mode()
def judge(
    model: KModel,
    recorded: Sequence[ReferenceUtterance],
    tokens: int,
    bucket: Bucket,
    paths: dict[str, Path],
    threads: int,
) -> dict[str, Any]:
    """Compare both parts with upstream's, unpadded, on the utterances that fit both buckets.

    Args:
        model: upstream's model.
        recorded: utterances; those that do not fit are left out.
        tokens: static size of the duration model.
        bucket: static size of the prosody model.
        paths: part to file.
        threads: of LiteRT.

    Returns:
        Flat: ``utterances``, ``duration_mismatches`` (tokens, over all utterances), and the worst SNR of each other
        output (``encoded_text_snr_db_min`` …, ``f0_contour_snr_db_min``, ``energy_snr_db_min``).

    Raises:
        KokoroNpuError: no utterance fits.
    """
    fitting = [item for item in recorded if item.tokens.shape[1] <= tokens and item.frames <= bucket.frames]
    if not fitting:
        raise KokoroNpuError(f"no utterance fits {tokens} tokens and {bucket.frames} frames: enlarge the buckets")
    dynamic = DurationModel(model)
    run_duration, run_prosody = (litert.run_all(paths[part], threads) for part in PARTS)
    worst: dict[str, float] = {}
    mismatches = 0
    for item in tqdm(fitting, desc="judge parts", unit="utterance"):
        count = item.tokens.shape[1]
        inputs = {
            "tokens": np.pad(item.tokens, ((0, 0), (0, tokens - count))),
            "token_length": np.array([count]),
            "voice_embedding": item.voice,
            "speed": np.array([item.speed], dtype=np.float32),
        }
        expected = dynamic(*(torch.from_numpy(value) for value in (item.tokens, *list(inputs.values())[1:])))
        truth = {name: value.numpy() for name, value in zip(OUTPUT_NAMES, expected, strict=True)}
        pairs = {}
        for name, found in zip(OUTPUT_NAMES, run_duration(inputs), strict=True):
            if name == "durations":
                mismatches += int((found[:, :count] != truth[name]).sum())
            elif name in ("encoded_text", "prosody_features"):
                pairs[name] = (truth[name], found[:, :count])
        aligned = align(truth["prosody_features"], truth["durations"])
        steps = 2 * item.frames
        curves = run_prosody(_prosody_inputs(aligned, truth["prosody_style"], bucket))
        reference = model.predictor.F0Ntrain(torch.from_numpy(aligned), torch.from_numpy(truth["prosody_style"]))
        for name, curve, found in zip(("f0_contour", "energy"), reference, curves, strict=True):
            pairs[name] = (curve.numpy(), found[:, 0, :steps])
        for name, (before, after) in pairs.items():
            worst[name] = min(worst.get(name, np.inf), snr_db(before.ravel(), after.ravel()))
    figures = {f"{name}_snr_db_min": round(value, 3) for name, value in worst.items()}
    return {"utterances": len(fitting), "duration_mismatches": mismatches, **figures}


def _prosody_inputs(aligned: Array, style: Array, bucket: Bucket) -> dict[str, Array]:
    frames = aligned.shape[2]
    room = bucket.frames - frames
    return {
        "aligned_prosody": np.pad(aligned, ((0, 0), (0, 0), (0, room))),
        "prosody_style": style,
        "frame_mask": np.pad(np.ones((1, 1, frames), np.float32), ((0, 0), (0, 0), (0, room))),
        "frame_ratio": frame_ratio(frames, bucket),
    }


def check_gates(report: Mapping[str, Any], gates: Mapping[str, float]) -> None:
    """Require of the report that each figure behind ``<precision>_`` and ending in ``_snr_db_min`` reaches its floor.

    Args:
        report: figures of :func:`judge` behind their precision.
        gates: ``<precision>_snr_db_min`` to the floor of all outputs of that precision, in dB.

    Raises:
        KokoroNpuError: the output that misses its floor by most.
    """
    for gate, floor in gates.items():
        precision = gate.partition("_")[0]
        found = {
            name: value
            for name, value in report.items()
            if name.startswith(f"{precision}_") and name.endswith("_snr_db_min")
        }
        worst = min(found, key=found.__getitem__)
        if not found[worst] >= floor:
            raise KokoroNpuError(f"export-litert-parts: {worst} is {found[worst]:.4g} dB, below {floor:g}")
