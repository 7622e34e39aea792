"""The public int8 monolith: Kokoro v1.0 as one dynamic-int8 ONNX, text tokens in and audio out.

It is the file that ``weights=wheel`` takes the weights from. As published it predicts its own durations, makes its
source from its own F0 without any noise, and inverts the STFT by an approximation. Each of these can be replaced by
the reference's, so that what is left is the error of its int8 arithmetic; the graph in between is not touched.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from kokoro.istftnet import TorchSTFT
from onnx import ModelProto, TensorProto, helper

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import HOP, N_FFT, NOISE_CHANNELS, NOISE_TAIL, STFT_BINS, VOICE_DIM, Array
from kokoro_npu.graphs.reading import read_graph, read_model
from kokoro_npu.graphs.sessions import cpu_session

INPUT_NAMES = ("tokens", "style", "speed")

_DURATIONS = "/encoder/Cast_output_0"
_SOURCE = "/decoder/decoder/generator/Concat_3_output_0"
_MAGNITUDE = "/decoder/decoder/generator/Exp_output_0"
_PHASE = "/decoder/decoder/generator/Sin_output_0"

Durations = npt.NDArray[np.integer]


def is_monolith(model: ModelProto) -> bool:
    """Whether a graph takes tokens, a style and a speed, and gives one audio."""
    return {info.name for info in model.graph.input} == set(INPUT_NAMES) and len(model.graph.output) == 1


class Monolith:
    """The monolith on ONNX Runtime CPU.

    Args:
        path: the ONNX file.
        given: what is fed instead of computed: any of ``durations`` and ``source``.

    Raises:
        KokoroNpuError: the file is no such monolith.
    """

    def __init__(self, path: Path | str, given: Sequence[str] = ()) -> None:
        graph = read_graph(path)
        made = {name for node in graph.graph.node for name in node.output}
        anchors = {_DURATIONS, _SOURCE, _MAGNITUDE, _PHASE}
        if not is_monolith(graph) or not anchors <= made:
            raise KokoroNpuError(
                f"{path}: not the int8 monolith of weights=wheel: inputs {', '.join(INPUT_NAMES)} or the tensors "
                f"{', '.join(sorted(anchors))} are missing"
            )
        self._given = tuple(given)
        self._session = cpu_session(with_given(read_model(path), given).SerializeToString())

    def run(
        self,
        tokens: npt.NDArray[np.int64],
        voice: Array,
        speed: float,
        durations: Durations | None = None,
        source: Array | None = None,
    ) -> "Said":
        """Speak tokens [1, S] with a voice row [1, 256].

        Args:
            tokens: [1, S] int64.
            voice: [1, 256] float32.
            speed: divides durations.
            durations: [S] or [1, S] integers, where ``given`` names them.
            source: [1, 22, 120 L + 8] float32, where ``given`` names it; its zero columns are left out.
        """
        feeds: dict[str, npt.NDArray] = {
            "tokens": tokens,
            "style": voice.reshape(1, VOICE_DIM),
            "speed": np.array([speed], dtype=np.float32),
        }
        if "durations" in self._given:
            assert durations is not None
            feeds["durations"] = np.asarray(durations, dtype=np.int64).reshape(1, -1)
        if "source" in self._given:
            assert source is not None
            feeds["source"] = np.ascontiguousarray(source[:, :, : source.shape[2] - NOISE_TAIL])
        used = {info.name for info in self._session.get_inputs()}
        outputs = [info.name for info in self._session.get_outputs()]
        values = self._session.run(None, {name: value for name, value in feeds.items() if name in used})
        found = dict(zip(outputs, values, strict=True))
        predicted = found[_DURATIONS].reshape(-1) if _DURATIONS in found else np.asarray(durations).reshape(-1)
        return Said(found["audio"].reshape(-1), predicted, found[_MAGNITUDE], found[_PHASE])


def predict_durations(
    path: Path | str, sentences: Mapping[str, tuple[npt.NDArray[np.int64], Array, float]]
) -> dict[str, Durations]:
    """Durations [1, S] that the monolith gives, by the sentence's name; only its text side runs.

    Args:
        path: the ONNX file.
        sentences: name to tokens [1, S], voice row [1, 256] and speed.
    """
    model = read_model(path)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(_DURATIONS, TensorProto.INT64, [1, "predicted_tokens"]))
    _drop_unread(model.graph)
    session = cpu_session(model.SerializeToString())
    return {
        name: session.run(None, {"tokens": tokens, "style": voice, "speed": np.array([speed], np.float32)})[0]
        for name, (tokens, voice, speed) in sentences.items()
    }


class Said:
    """What the monolith said.

    Attributes:
        audio: [N] float32, by its own inverse STFT.
        durations: [S] integers.
    """

    def __init__(self, audio: Array, durations: Durations, magnitude: Array, phase: Array) -> None:
        self.audio = audio
        self.durations = durations
        self._magnitude, self._phase = magnitude, phase

    def exact_audio(self) -> Array:
        """[600 L] float32: the same spectrum by upstream's exact inverse STFT."""
        stft = TorchSTFT(filter_length=N_FFT, hop_length=HOP, win_length=N_FFT)
        spectrum = (torch.from_numpy(np.ascontiguousarray(part)) for part in (self._magnitude, self._phase))
        audio: Array = stft.inverse(*spectrum).reshape(-1).numpy()
        return audio


def with_given(model: ModelProto, given: Sequence[str]) -> ModelProto:
    """The monolith with inputs in place of what ``given`` names, and with its durations and spectrum as outputs.

    Args:
        model: with its weights; it is changed.
        given: any of ``durations`` (int64 [1, S]) and ``source`` (float32 [1, 22, 120 L + 1]).
    """
    anchors = {
        "durations": (_DURATIONS, helper.make_tensor_value_info("durations", TensorProto.INT64, [1, "given_tokens"])),
        "source": (
            _SOURCE,
            helper.make_tensor_value_info("source", TensorProto.FLOAT, [1, NOISE_CHANNELS, "given_steps"]),
        ),
    }
    graph = model.graph
    for name in given:
        anchor, info = anchors[name]
        graph.input.append(info)
        for node in graph.node:
            for index, read in enumerate(node.input):
                if read == anchor:
                    node.input[index] = name
    spectrum = (1, STFT_BINS, "steps")
    graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, spectrum) for n in (_MAGNITUDE, _PHASE))
    if "durations" not in given:
        graph.output.append(helper.make_tensor_value_info(_DURATIONS, TensorProto.INT64, [1, "predicted_tokens"]))
    _drop_unread(graph)
    return model


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Leave out the nodes whose outputs nothing reads any more: they would only cost time."""
    wanted = {info.name for info in graph.output}
    kept = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    initializers = [tensor for tensor in graph.initializer if tensor.name in wanted]
    del graph.initializer[:]
    graph.initializer.extend(initializers)
