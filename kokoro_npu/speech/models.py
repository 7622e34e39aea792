"""Which files speak: those of a build (artifacts/)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from kokoro_npu.build import places
from kokoro_npu.build.labels import FP32, QUANTIZED
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.weights.canonical import load_config, load_voices

DIRECTORIES = {FP32: places.DECODERS.name, QUANTIZED: places.QUANTIZED.name}
"""Precision of a decoder to the directory of a build that holds it."""


@dataclass(frozen=True)
class Models:
    """What the synthesizer needs.

    Attributes:
        duration: path of ``kokoro_duration.onnx``.
        prosody: path of ``kokoro_prosody.onnx``.
        decoders: frames of a bucket to the path of its decoder, or of the model that names its context binary.
        voices: name to voice pack [510, 256] float32.
        vocab: phoneme to token id.
    """

    duration: Path
    prosody: Path
    decoders: Mapping[int, Path]
    voices: Mapping[str, Array]
    vocab: Mapping[str, int]


def models_of_build(artifacts: Path | str, precision: str, buckets: Collection[int] = ()) -> Models:
    """The models that ``dvc repro`` has built.

    Args:
        artifacts: its directory.
        precision: of the decoder, a key of `DIRECTORIES`.
        buckets: frames of those to take; without any, all that are there. Decoders that an earlier build left behind
            with other weights are passed over: they would make noise.

    Raises:
        KokoroNpuError: something is not built.
    """
    root = Path(artifacts)
    duration, prosody = (root / places.CPU.name / name for name in (places.DURATION_MODEL, places.PROSODY_MODEL))
    directory = root / DIRECTORIES[precision]
    weights = directory / places.SHARED_WEIGHTS
    for path in (duration, prosody, Pack.index_path(weights)):
        if not path.is_file():
            raise KokoroNpuError(f"{path} is not there: build it first (make repro), or name an SDK bundle (--bundle)")
    stored = set(Pack.open(weights).places.values())
    usable = {frames: path for frames, path in places.decoders(directory).items() if _points_into(path, stored)}
    if missing := sorted(set(buckets) - set(usable)):
        raise KokoroNpuError(f"{directory} holds no usable decoder of {missing[0]} frames: build it first (make repro)")
    if not usable:
        raise KokoroNpuError(f"{directory} holds no decoder of the weights beside it: build it first (make repro)")
    decoders = {frames: usable[frames] for frames in buckets or usable}
    canonical = root / places.WEIGHTS.name
    return Models(duration, prosody, decoders, load_voices(canonical), load_config(canonical)["vocab"])


def _points_into(decoder: Path, stored: Collection[tuple[int, int]]) -> bool:
    """Whether every external tensor of a decoder lies at one of the places (offset, bytes) of a pack."""
    for tensor in onnx.load(decoder, load_external_data=False).graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if where and (int(where["offset"]), int(where["length"])) not in stored:
            return False
    return True
