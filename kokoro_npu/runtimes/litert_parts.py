"""The models before the decoder for LiteRT: durations and features, then F0 and energy.

Both are static: a bucket of tokens and one of frames. They are judged output by output, because what follows them
multiplies errors: a duration that differs by a frame moves all that follows, and the source's phase is a running
sum of F0.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from kokoro import KModel
from tqdm import tqdm
from transformers.models.albert.modeling_albert import AlbertTransformer

from kokoro_npu.audio.metrics import snr_db
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import PROSODY_DIM, STYLE_DIM, VOICE_DIM, Array, Bucket
from kokoro_npu.host.frontend import duration_feeds
from kokoro_npu.host.steps import align, frame_ratio
from kokoro_npu.model.duration import OUTPUT_NAMES, DurationModel
from kokoro_npu.runtimes import litert
from kokoro_npu.runtimes.compare import prefixed
from kokoro_npu.runtimes.static_parts import StaticDuration, StaticProsody

PRECISIONS = ("fp32", "int8")


def export(
    model: KModel, utterances: Sequence[ReferenceUtterance], tokens: int, bucket: Bucket, threads: int, directory: Path
) -> dict[str, Any]:
    """Write both models in float32 and with 8-bit weights, and judge them.

    PL-BERT's weights are in half precision in place of 8 bits: its one layer runs twelve times, and in 8 bits left the
    prosody features 24 dB, in half precision 35.

    Args:
        model: upstream's model.
        utterances: what judges them; those that do not fit are left out.
        tokens: static size of the duration model.
        bucket: static size of the prosody model.
        threads: of LiteRT.
        directory: gets ``kokoro_{duration,prosody}_{fp32,int8}.tflite``.

    Returns:
        Flat: ``tokens``, ``frames``, and behind each precision the bytes of both files and the figures of `_judge`.

    Raises:
        KokoroNpuError: no utterance fits.
    """
    fitting = [item for item in utterances if item.tokens.shape[1] <= tokens and item.frames <= bucket.frames]
    if not fitting:
        raise KokoroNpuError(f"no utterance fits {tokens} tokens and {bucket.frames} frames: enlarge the buckets")
    duration, prosody = StaticDuration(model), StaticProsody(model)
    silence = duration_feeds(np.zeros((1, tokens), np.int64), np.zeros((1, VOICE_DIM), np.float32), 1.0)
    aligned, style = np.zeros((1, PROSODY_DIM, bucket.frames), np.float32), np.zeros((1, STYLE_DIM), np.float32)
    paths = {p: {part: directory / f"kokoro_{part}_{p}.tflite" for part in ("duration", "prosody")} for p in PRECISIONS}
    fp32, int8 = paths.values()
    litert.convert(duration, _tensors(silence), fp32["duration"])
    litert.quantize_weights(fp32["duration"], int8["duration"], half=[litert.scope(duration, AlbertTransformer)])
    litert.convert(prosody, _tensors(_prosody_feeds(aligned, style, bucket)), fp32["prosody"])
    litert.quantize_weights(fp32["prosody"], int8["prosody"])
    report: dict[str, Any] = {"tokens": tokens, "frames": bucket.frames}
    for precision, files in paths.items():
        found = _judge(model, fitting, tokens, bucket, files, threads)
        sizes = {f"{part}_bytes": path.stat().st_size for part, path in files.items()}
        report |= prefixed(precision, found | sizes)
    return report


@torch.inference_mode()
def _judge(
    model: KModel,
    utterances: Sequence[ReferenceUtterance],
    tokens: int,
    bucket: Bucket,
    paths: Mapping[str, Path],
    threads: int,
) -> dict[str, Any]:
    """Compare both models with upstream's, unpadded.

    Returns:
        Flat: ``utterances``, ``duration_mismatches`` (tokens, over all utterances), and the worst SNR of each other
        output (``encoded_text_snr_db_min`` …, ``f0_contour_snr_db_min``, ``energy_snr_db_min``) and of them all
        (``snr_db_min``).
    """
    dynamic = DurationModel(model)
    run = {part: litert.run_all(path, threads) for part, path in paths.items()}
    worst: dict[str, float] = {}
    mismatches = 0
    for item in tqdm(utterances, desc="judge parts", unit="utterance"):
        count = item.tokens.shape[1]
        inputs = duration_feeds(item.tokens, item.voice, item.speed)
        truth = dict(zip(OUTPUT_NAMES, (value.numpy() for value in dynamic(**_tensors(inputs))), strict=True))
        inputs["tokens"] = np.pad(item.tokens, ((0, 0), (0, tokens - count)))
        found = dict(zip(OUTPUT_NAMES, run["duration"](inputs), strict=True))
        mismatches += int((found["durations"][:, :count] != truth["durations"]).sum())
        pairs = {name: (truth[name], found[name][:, :count]) for name in ("encoded_text", "prosody_features")}
        aligned, style = align(truth["prosody_features"], truth["durations"]), truth["prosody_style"]
        curves = run["prosody"](_prosody_feeds(aligned, style, bucket))
        reference = model.predictor.F0Ntrain(torch.from_numpy(aligned), torch.from_numpy(style))
        for name, before, after in zip(("f0_contour", "energy"), reference, curves, strict=True):
            pairs[name] = (before.numpy(), after[:, 0, : 2 * item.frames])
        for name, (before, after) in pairs.items():
            worst[name] = min(worst.get(name, np.inf), snr_db(before.ravel(), after.ravel()))
    figures = {f"{name}_snr_db_min": round(value, 3) for name, value in worst.items()}
    figures["snr_db_min"] = min(figures.values())
    return {"utterances": len(utterances), "duration_mismatches": mismatches, **figures}


def _tensors(inputs: Mapping[str, npt.NDArray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in inputs.items()}


def _prosody_feeds(aligned: Array, style: Array, bucket: Bucket) -> dict[str, Array]:
    frames = aligned.shape[2]
    padding = ((0, 0), (0, 0), (0, bucket.frames - frames))
    return {
        "aligned_prosody": np.pad(aligned, padding),
        "prosody_style": style,
        "frame_mask": np.pad(np.ones((1, 1, frames), np.float32), padding),
        "frame_ratio": frame_ratio(frames, bucket),
    }
