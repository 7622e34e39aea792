"""The public int8 monolith: Kokoro v1.0 as one dynamic-int8 ONNX, text tokens in and audio out.

It is the file that ``weights=wheel`` takes the weights from. As published it predicts its own durations, makes its
source from its own F0 without any noise, and inverts the STFT by an approximation. Each of these can be replaced by
the reference's, so that what is left is the error of its int8 arithmetic; the graph in between is not touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import torch
from kokoro.istftnet import TorchSTFT
from onnx import ModelProto
from onnx.utils import Extractor

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import HOP, N_FFT, NOISE_TAIL, Array
from kokoro_npu.graphs.reading import read_graph, read_model
from kokoro_npu.graphs.sessions import cpu_session

INPUT_NAMES = ("tokens", "style", "speed")

_AUDIO = "audio"
_DURATIONS = "/encoder/Cast_output_0"
_SOURCE = "/decoder/decoder/generator/Concat_3_output_0"
_MAGNITUDE = "/decoder/decoder/generator/Exp_output_0"
_PHASE = "/decoder/decoder/generator/Sin_output_0"
_GIVEN = {"durations": _DURATIONS, "source": _SOURCE}
"""What can be given, and the tensor that it takes the place of."""

Durations = npt.NDArray[np.integer]


@dataclass(frozen=True)
class MonolithSpeech:
    """What the monolith said.

    Attributes:
        audio: [N] float32, by its own inverse STFT.
        durations: [S] integers.
        magnitude: [1, 11, 120 L + 1] float32, of its spectrum.
        phase: likewise.
    """

    audio: Array
    durations: Durations
    magnitude: Array
    phase: Array

    def exact_audio(self) -> Array:
        """[600 L] float32: the same spectrum by upstream's exact inverse STFT."""
        stft = TorchSTFT(filter_length=N_FFT, hop_length=HOP, win_length=N_FFT)
        audio: Array = stft.inverse(torch.from_numpy(self.magnitude), torch.from_numpy(self.phase)).reshape(-1).numpy()
        return audio


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
        tensors = {_DURATIONS, _SOURCE, _MAGNITUDE, _PHASE}
        if not is_monolith(graph) or not tensors <= made:
            raise KokoroNpuError(
                f"{path}: not the int8 monolith of weights=wheel: inputs {', '.join(INPUT_NAMES)} or the tensors "
                f"{', '.join(sorted(tensors))} are missing"
            )
        predicted = () if "durations" in given else (_DURATIONS,)
        self._session = _session(path, [_GIVEN[name] for name in given], (_AUDIO, _MAGNITUDE, _PHASE, *predicted))

    def run(
        self,
        tokens: npt.NDArray[np.int64],
        voice: Array,
        speed: float,
        durations: Durations | None = None,
        source: Array | None = None,
    ) -> MonolithSpeech:
        """Speak.

        Args:
            tokens: [1, S] int64.
            voice: [1, 256] float32, a row of a voice pack.
            speed: divides durations.
            durations: [S] or [1, S] integers, read where ``given`` names them.
            source: [1, 22, 120 L + 8] float32, read where ``given`` names it; its zero columns are left out.
        """
        feeds: dict[str, npt.NDArray] = _feeds(tokens, voice, speed)
        if durations is not None:
            feeds[_DURATIONS] = np.asarray(durations, dtype=np.int64).reshape(1, -1)
        if source is not None:
            feeds[_SOURCE] = np.ascontiguousarray(source[:, :, :-NOISE_TAIL])
        used = {info.name: feeds[info.name] for info in self._session.get_inputs()}
        audio, magnitude, phase, *predicted = self._session.run(None, used)
        (said,) = predicted or [feeds[_DURATIONS]]
        return MonolithSpeech(audio.reshape(-1), said.reshape(-1), magnitude, phase)


def predict_durations(
    path: Path | str, sentences: Mapping[str, tuple[npt.NDArray[np.int64], Array, float]]
) -> dict[str, Durations]:
    """Durations [1, S] that the monolith gives, by the sentence's name; only its text side runs.

    Args:
        path: the ONNX file.
        sentences: name to tokens [1, S], voice row [1, 256] and speed.
    """
    session = _session(path, (), (_DURATIONS,))
    return {name: session.run(None, _feeds(*sentence))[0] for name, sentence in sentences.items()}


def _feeds(tokens: npt.NDArray[np.int64], voice: Array, speed: float) -> dict[str, npt.NDArray]:
    return {"tokens": tokens, "style": voice, "speed": np.array([speed], np.float32)}


def _session(path: Path | str, given: Sequence[str], outputs: Sequence[str]) -> ort.InferenceSession:
    """The part of the monolith that leads from its inputs and the ``given`` tensors to the ``outputs``."""
    model = Extractor(read_model(path)).extract_model([*INPUT_NAMES, *given], list(outputs))
    return cpu_session(model.SerializeToString())
