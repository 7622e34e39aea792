"""Which files speak: those of a build (artifacts/)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.weights.canonical import load_config, load_voices

FP32, QUANTIZED = "fp32", "quantized"
PRECISIONS = (FP32, QUANTIZED)
_DIRECTORIES = {FP32: "decoder", QUANTIZED: "quantized"}
_PACK = "kokoro_decoder.weights"


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


def models_of_build(artifacts: Path | str, precision: str = FP32, buckets: Collection[int] = ()) -> Models:
    """The models that ``dvc repro`` has built.

    Args:
        artifacts: its directory.
        precision: of the decoder, one of `PRECISIONS`.
        buckets: frames of those to take; without any, all that are there. Decoders that an earlier build left behind
            with other weights are passed over: they would make noise.

    Raises:
        KokoroNpuError: something is not built.
    """
    root = Path(artifacts)
    directory = root / _DIRECTORIES[precision]
    needed = [root / "cpu/kokoro_duration.onnx", root / "cpu/kokoro_prosody.onnx", Pack.index_path(directory / _PACK)]
    for path in needed:
        if not path.is_file():
            raise KokoroNpuError(f"{path} is not there: build it first (make repro), or name an SDK bundle (--bundle)")
    pack = Pack.open(directory / _PACK)
    decoders = {int(path.stem.rpartition("_")[2]): path for path in directory.glob("kokoro_decoder_*.onnx")}
    decoders = {frames: path for frames, path in sorted(decoders.items()) if _points_into(path, pack)}
    if not decoders:
        raise KokoroNpuError(f"{directory} holds no decoder of the weights beside it: build it first (make repro)")
    if missing := sorted(set(buckets) - set(decoders)):
        raise KokoroNpuError(f"{directory} holds no usable decoder of {missing[0]} frames: build it first (make repro)")
    decoders = {frames: path for frames, path in decoders.items() if frames in buckets or not buckets}
    config = load_config(root / "weights")
    return Models(needed[0], needed[1], decoders, load_voices(root / "weights"), config["vocab"])


def _points_into(decoder: Path, pack: Pack) -> bool:
    """Whether every external tensor of a decoder lies where the pack has one."""
    places = set(pack.places.values())
    for tensor in onnx.load(decoder, load_external_data=False).graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if where and (int(where["offset"]), int(where["length"])) not in places:
            return False
    return True
