"""The whole decoder through the HTP emulation, against upstream's unpadded PyTorch model.

Minutes an utterance, so each decoded utterance is kept, and a killed run goes on where it stopped.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import soundfile
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.compile.backends import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.emulation.htp import Job, emulate, fingerprint
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate.parity import Variant, middle, onnx_variant
from kokoro_npu.files import atomic
from kokoro_npu.files import sha256 as file_sha256
from kokoro_npu.geometry import SAMPLE_RATE, Array, Bucket
from kokoro_npu.graphs import cost
from kokoro_npu.host.steps import pad_to_bucket, trim

FP16, QUANTIZED_CPU = "fp16", "quantized_cpu"
"""Beside ``quantized``: the float decoder, which HTP runs in half precision, and the quantized one on the CPU."""

_DECODER_GMAC_PER_SECOND = {"fp16": 0.2, "quantized": 0.1}
"""What the emulation does of a whole decoder on one core (w8a16 0.13, mixed 0.07): much of it is no convolution."""


@dataclass(frozen=True)
class Decoder:
    """One form of the decoder to emulate.

    Attributes:
        variant: ``fp16`` or ``quantized``.
        path: the ONNX model, weights inside.
        precision: as the compile report names it.
    """

    variant: str
    path: Path
    precision: str


def short_utterances(
    recorded: Sequence[ReferenceUtterance], bucket: Bucket, count: int, model: KModel
) -> list[ReferenceUtterance]:
    """``count`` utterances for a small bucket: those that fit, then the middle of the next longer ones.

    Raises:
        KokoroNpuError: fewer were recorded.
    """
    if len(recorded) < count:
        raise KokoroNpuError(f"{count} utterances are asked for and {len(recorded)} were recorded")
    shortest = sorted(recorded, key=lambda item: (item.frames, item.id))[:count]
    return [item if item.frames <= bucket.frames else middle(item, bucket.frames, model) for item in shortest]


def decode_all(
    decoders: Sequence[Decoder],
    utterances: Sequence[ReferenceUtterance],
    bucket: Bucket,
    target: Target,
    settings: CompileSettings,
    cache_dir: Path,
    processes: int,
) -> dict[tuple[str, str], Array]:
    """Audio of every decoder and utterance from the emulation.

    The binary that the compiler makes is what runs, as on the device.

    Args:
        decoders: what to run.
        utterances: on what.
        bucket: their size.
        target: the chip.
        settings: level and options that ship.
        cache_dir: keeps binaries and audio.
        processes: emulations at a time; one takes one core and the memory of a decoder.

    Returns:
        ``(variant, utterance id)`` to audio [1, 600 T] float32.

    Raises:
        KokoroNpuError: a decoder does not compile or run.
    """
    tasks = []
    for decoder in decoders:
        digest = file_sha256(decoder.path)
        for item in utterances:
            feeds = pad_to_bucket(item.features, bucket)
            key = _key(digest, feeds, target, settings)
            tasks.append((decoder, item, feeds, cache_dir / f"{key}.npy"))
    missing = [task for task in tasks if not task[3].is_file()]
    if missing:
        seconds = {decoder.variant: _seconds(decoder) for decoder in decoders}
        total = sum(seconds[task[0].variant] for task in missing) / min(processes, len(missing))
        each = ", ".join(f"{variant} {value:.0f} s" for variant, value in seconds.items())
        print(
            f"{len(missing)} of {len(tasks)} decodings to emulate: about {total / 60:.0f} minutes "
            f"in {processes} processes ({each} each)",
            file=sys.stderr,
            flush=True,
        )
        binaries = {
            decoder.variant: _binary(decoder, bucket, target, settings, cache_dir)
            for decoder in {task[0].variant: task[0] for task in missing}.values()
        }

        def run(task: tuple[Decoder, ReferenceUtterance, dict[str, Array], Path]) -> None:
            decoder, item, feeds, path = task
            what = f"emulate {decoder.variant} {item.id}"
            (answer,) = emulate([Job(binaries[decoder.variant], feeds)], target, settings, describe=what)
            if answer.error:
                raise KokoroNpuError(f"{what}: {answer.error}")
            with atomic(path) as tmp:
                np.save(tmp, answer.outputs["audio"])

        with ThreadPoolExecutor(processes) as pool, tqdm(total=len(missing), desc="emulate", unit="decoding") as bar:
            futures = [pool.submit(run, task) for task in missing]
            try:
                for future in as_completed(futures):
                    future.result()
                    bar.update()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return {(decoder.variant, item.id): np.load(path) for decoder, item, _, path in tasks}


def _seconds(decoder: Decoder) -> float:
    """Estimate of one decoding."""
    form = "fp16" if decoder.precision == "fp16" else "quantized"
    return cost.count(decoder.path).gmacs / _DECODER_GMAC_PER_SECOND[form]


def _key(digest: str, feeds: Mapping[str, Array], target: Target, settings: CompileSettings) -> str:
    key = sha256(f"{digest} {fingerprint(target, settings)}".encode())
    for name in sorted(feeds):
        key.update(feeds[name].tobytes())
    return key.hexdigest()


def _binary(decoder: Decoder, bucket: Bucket, target: Target, settings: CompileSettings, cache_dir: Path) -> Path:
    """The decoder's context model, compiled anew: it costs seconds, and the compiler may have changed."""
    out_dir = cache_dir / f"{bucket.frames}_{decoder.variant}"
    report = compile_decoder(decoder.path, bucket.frames, Spec(decoder.precision, target, settings), out_dir)
    if not report["compiled"]:
        raise KokoroNpuError(f"{decoder.variant} decoder of {bucket.frames} frames: {report['reason']}")
    return out_dir / f"{decoder.path.stem}_ctx.onnx"


def variants(
    audio: Mapping[tuple[str, str], Array], utterances: Sequence[ReferenceUtterance], bucket: Bucket, quantized: Path
) -> Iterator[tuple[str, Variant]]:
    """What parity judges: the emulated audio, and the quantized decoder on ONNX Runtime CPU."""
    ids = {_inputs_key(pad_to_bucket(item.features, bucket)): item.id for item in utterances}
    for variant in dict.fromkeys(name for name, _ in audio):
        yield variant, lambda inputs, variant=variant: audio[variant, ids[_inputs_key(inputs)]]  # type: ignore[misc]
    yield QUANTIZED_CPU, onnx_variant(quantized)


def _inputs_key(inputs: Mapping[str, Array]) -> bytes:
    return b"".join(inputs[name].tobytes() for name in sorted(inputs))


def write_wavs(audio: Mapping[tuple[str, str], Array], utterances: Sequence[ReferenceUtterance], out_dir: Path) -> None:
    """``<utterance>_<variant>.wav`` and ``<utterance>_reference.wav``, to listen to."""
    for item in utterances:
        sounds = {variant: trim(value, item.frames) for (variant, name), value in audio.items() if name == item.id}
        for variant, sound in {"reference": item.reference, **sounds}.items():
            with atomic(out_dir / f"{item.id}_{variant}.wav") as tmp:
                soundfile.write(tmp, sound, SAMPLE_RATE, subtype="PCM_16")


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """The worst figures of :func:`kokoro_npu.evaluate.parity.evaluate`'s table, flat."""
    report: dict[str, Any] = {"utterances": int(table["utterance"].nunique())}
    for variant in (FP16, QUANTIZED, QUANTIZED_CPU):
        rows = table[table["variant"] == variant]
        report |= {
            f"{variant}_snr_db_min": round(float(rows["snr_db"].min()), 6),
            f"{variant}_magspec_corr_min": round(float(rows["magspec_corr"].min()), 6),
            f"{variant}_logmel_mae_max": round(float(rows["logmel_mae"].max()), 6),
        }
    return report
