"""One text spoken by a model and by upstream's PyTorch model, to listen to and to measure."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from kokoro import KModel
from onnx import ModelProto

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.graphs.reading import read_graph
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.host.source_noise import speech_noise
from kokoro_npu.host.steps import pad_to_bucket, trim
from kokoro_npu.model import reference
from kokoro_npu.variants.monolith import INPUT_NAMES, Monolith, is_monolith
from kokoro_npu.variants.whole_model import measured


@dataclass(frozen=True)
class Verified:
    """Two recordings of one text.

    Attributes:
        kind: ``decoder`` or ``whole model``.
        reference: [600 L] float32, upstream's unpadded PyTorch model.
        audio: [N] float32, the model's.
        moved_tokens: tokens whose duration differs from the reference's.
        moved_frames: frames by which these differ, together.
    """

    kind: str
    reference: Array
    audio: Array
    moved_tokens: int
    moved_frames: int

    def figures(self) -> dict[str, float]:
        """Metrics of the part that both recordings have, by name."""
        common = min(len(self.reference), len(self.audio))
        return measured(self.reference[:common], self.audio[:common])


def verify(
    path: Path | str,
    tokens: npt.NDArray[np.int64],
    voice: Array,
    speed: float,
    seed: int,
    frontend: Frontend,
    kmodel: KModel,
) -> Verified:
    """Speak tokens with a model and with PyTorch, from the same source.

    Args:
        path: a decoder of this project, float or quantized, of any bucket that holds the text; or the int8 monolith.
        tokens: [1, S] int64.
        voice: [1, 256] float32.
        speed: divides durations.
        seed: of the source's noise, which the monolith has none of.
        frontend: the CPU models in front of a decoder.
        kmodel: upstream's model.

    Raises:
        KokoroNpuError: the file is neither kind of model, or the text does not fit its bucket.
    """
    model = read_graph(path)
    prepared = frontend.prepare(tokens, voice, speed, speech_noise(seed))
    truth, durations = reference.synthesize(kmodel, tokens, voice, speed, prepared.features["noise"], prepared.frames)
    if is_monolith(model):
        spoken = Monolith(path).run(tokens, voice, speed)
        kind, audio, own = "whole model", spoken.audio, spoken.durations
    else:
        kind, own = "decoder", prepared.durations[0]
        inputs = pad_to_bucket(prepared.features, _bucket(path, model))
        audio = trim(cpu_session(path).run(None, inputs)[0], prepared.frames)
    moved = np.abs(own.astype(np.int64) - durations)
    return Verified(kind, truth, audio, int((moved > 0).sum()), int(moved.sum()))


def _bucket(path: Path | str, model: ModelProto) -> Bucket:
    """The bucket of a decoder, by its inputs."""
    shapes = {info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim) for info in model.graph.input}
    frames = shapes.get("aligned_features", (0,))[-1]
    if not frames or shapes != Bucket(frames).input_shapes:
        raise KokoroNpuError(
            f"{path}: its inputs are {', '.join(shapes)}; expected a decoder ({', '.join(Bucket(2).input_shapes)}, "
            f"static) or a whole model ({', '.join(INPUT_NAMES)})"
        )
    return Bucket(frames)
