"""The whole decoder through the HTP emulation, against upstream's unpadded PyTorch model.

Minutes an utterance, so each decoded utterance is kept, and a killed run goes on where it stopped.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.build import places
from kokoro_npu.compile.local import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.emulation.htp import Job, emulate, fingerprint
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate.parity import Variant, middle, onnx_variant, replayed
from kokoro_npu.files import atomic
from kokoro_npu.files import sha256 as file_sha256
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.host.steps import pad_to_bucket

QUANTIZED_CPU = "quantized_cpu"
"""The variant beside the emulated ones: the quantized decoder on ONNX Runtime CPU."""


@dataclass(frozen=True)
class EmulatedDecoder:
    """One form of the decoder to emulate.

    Attributes:
        form: of ``kokoro_npu.emulation.htp.FORMS``; the variant's name in tables.
        path: the ONNX model, weights inside.
        precision: as the compile report names it.
    """

    form: str
    path: Path
    precision: str


class _Decoding(NamedTuple):
    decoder: EmulatedDecoder
    utterance: str
    feeds: dict[str, Array]
    path: Path


def short_utterances(
    recorded: Sequence[ReferenceUtterance], bucket: Bucket, wanted: int, model: KModel
) -> list[ReferenceUtterance]:
    """``wanted`` utterances for a small bucket: those that fit, then the middle of the next longer ones.

    Raises:
        KokoroNpuError: fewer were recorded.
    """
    if len(recorded) < wanted:
        raise KokoroNpuError(f"{wanted} utterances are asked for and {len(recorded)} were recorded")
    shortest = sorted(recorded, key=lambda item: (item.frames, item.id))[:wanted]
    return [item if item.frames <= bucket.frames else middle(item, bucket.frames, model) for item in shortest]


def decode_all(
    decoders: Sequence[EmulatedDecoder],
    utterances: Sequence[ReferenceUtterance],
    bucket: Bucket,
    target: Target,
    settings: CompileSettings,
    cache_dir: Path,
    processes: int,
) -> dict[str, list[Array]]:
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
        Form to audio [1, 600 T] float32 of each utterance.

    Raises:
        KokoroNpuError: a decoder does not compile or run.
    """
    tasks: dict[str, list[_Decoding]] = {}
    for decoder in decoders:
        model = f"{file_sha256(decoder.path)} {fingerprint(target, settings)}"
        for item in utterances:
            feeds = pad_to_bucket(item.features, bucket)
            path = cache_dir / f"{_key(model, feeds)}.npy"
            tasks.setdefault(decoder.form, []).append(_Decoding(decoder, item.id, feeds, path))
    if missing := [task for decodings in tasks.values() for task in decodings if not task.path.is_file()]:
        needed = dict.fromkeys(task.decoder for task in missing)
        binaries = {decoder: _binary(decoder, bucket, target, settings, cache_dir) for decoder in needed}

        def run(task: _Decoding) -> None:
            what = f"emulate {task.decoder.form} {task.utterance}"
            (answer,) = emulate([Job(binaries[task.decoder], task.feeds)], target, settings, describe=what)
            if answer.error:
                raise KokoroNpuError(f"{what}: {answer.error}")
            with atomic(task.path) as tmp:
                np.save(tmp, answer.outputs["audio"])

        with ThreadPoolExecutor(processes) as pool:  # a failure cancels what has not begun
            list(tqdm(pool.map(run, missing), total=len(missing), desc="emulate", unit="decoding"))
    return {form: [np.load(task.path) for task in decodings] for form, decodings in tasks.items()}


def _key(model: str, feeds: Mapping[str, Array]) -> str:
    key = sha256(model.encode())
    for name in sorted(feeds):
        key.update(feeds[name].tobytes())
    return key.hexdigest()


def _binary(
    decoder: EmulatedDecoder, bucket: Bucket, target: Target, settings: CompileSettings, cache_dir: Path
) -> Path:
    """The decoder's context model, compiled anew: it costs seconds, and the compiler may have changed."""
    out_dir = cache_dir / f"{bucket.frames}_{decoder.form}"
    report = compile_decoder(decoder.path, bucket.frames, Spec(decoder.precision, target, settings), out_dir)
    if not report["compiled"]:
        raise KokoroNpuError(f"{decoder.form} decoder of {bucket.frames} frames: {report['reason']}")
    return places.context_model(out_dir, decoder.path)


def variants(audio: Mapping[str, Sequence[Array]], quantized: Path) -> Iterator[tuple[str, Variant]]:
    """What parity judges: the emulated audio, and the quantized decoder on ONNX Runtime CPU."""
    yield from ((form, replayed(sounds)) for form, sounds in audio.items())
    yield QUANTIZED_CPU, onnx_variant(quantized)
