"""What a part is measured on: windows of utterances through all three models, of which one has the part quantized.

Durations and the source are held fixed, so that the waveforms stay comparable sample by sample: a moved duration or a
drifting phase would hide what the ear hears of everything else.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from kokoro_npu.audio import metrics
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.host.frontend import duration_feeds, prosody_feeds
from kokoro_npu.host.source_noise import corpus_noise
from kokoro_npu.host.steps import align, crop, pad_to_bucket, trim
from kokoro_npu.quantize.calibrate import measure
from kokoro_npu.sensitivity.analysis import Part, PartQuantizer, activation_parts, weight_parts

Measure = Callable[[], tuple[float, float]]
Models = dict[str, ort.InferenceSession]
Features = dict[str, Array]


def choose_windows(recorded: Sequence[ReferenceUtterance], frames: int, count: int) -> list[ReferenceUtterance]:
    """The ``count`` shortest utterances of at least ``frames`` frames.

    Raises:
        KokoroNpuError: there are not so many.
    """
    long_enough = sorted((item for item in recorded if item.frames >= frames), key=lambda item: (item.frames, item.id))
    if len(long_enough) < count:
        raise KokoroNpuError(
            f"sensitivity: {len(long_enough)} utterances hold a window of {frames} frames, not {count}"
        )
    return long_enough[:count]


class Bench:
    """The three models on some windows, and all their parts.

    Args:
        duration: ``kokoro_duration.onnx``.
        prosody: ``kokoro_prosody.onnx``.
        decoder: of the bucket that is as long as a window.
        recorded: utterances; the middle of each is a window.
        frames: of a window.
        weight_bits: of the parts that are weights.
    """

    def __init__(
        self,
        duration: onnx.ModelProto,
        prosody: onnx.ModelProto,
        decoder: onnx.ModelProto,
        recorded: Sequence[ReferenceUtterance],
        frames: int,
        weight_bits: int,
    ) -> None:
        self._bucket = Bucket(frames)
        self._recorded = recorded
        self._weight_bits = weight_bits
        models = {"duration": duration, "prosody": prosody, "decoder": decoder}
        self._parts = [(name, part) for name, model in models.items() for part in weight_parts(model)]
        self._parts += [("decoder", part) for part in activation_parts(decoder)]
        self._quantizers = {name: PartQuantizer(model) for name, model in models.items()}
        self._float = {name: quantizer.float_session() for name, quantizer in self._quantizers.items()}
        # The float models' own, so that what is heard differs by the quantized part alone.
        self._durations = [self._run_duration(self._float, item)[0] for item in recorded]
        self._exact = [self._features(number, self._float, number) for number in range(len(recorded))]
        windows = [self._window(number, features) for number, features in enumerate(self._exact)]
        self._truth = [self._speak(self._float, window) for window in windows]
        self._ranges = measure(decoder, windows)

    def parts(self) -> Iterator[tuple[Part, Measure]]:
        """Every part, with what measures it: log-mel distance and SNR against the float models."""
        for model, part in self._parts:
            yield part, partial(self._measure, model, part)

    def floor(self) -> float:
        """Log-mel distance between the float models and themselves with another draw of the source's noise.

        Whoever compares recordings of models that draw their own noise sees no damage below it.
        """
        count = len(self._recorded)
        return self._judge(self._float, [self._features(n, self._float, count + n) for n in range(count)])[0]

    def _measure(self, model: str, part: Part) -> tuple[float, float]:
        models = self._float | {model: self._quantizers[model].session(part, self._weight_bits, self._ranges)}
        if model == "decoder":
            return self._judge(models, self._exact)
        heard = []
        for number, exact in enumerate(self._exact):
            features = self._features(number, models, number)
            if not np.array_equal(features["f0_contour"], exact["f0_contour"]):
                features["noise"] = exact["noise"]  # Of another pitch, a source drifts.
            heard.append(features)
        return self._judge(models, heard)

    def _judge(self, models: Models, utterances: Sequence[Features]) -> tuple[float, float]:
        """Mean log-mel distance, and the SNR of all windows together."""
        audio = [self._speak(models, self._window(number, features)) for number, features in enumerate(utterances)]
        distances = [metrics.logmel_mae(truth, heard) for truth, heard in zip(self._truth, audio, strict=True)]
        return float(np.mean(distances)), metrics.snr_db(np.concatenate(self._truth), np.concatenate(audio))

    def _run_duration(self, models: Models, item: ReferenceUtterance) -> list[Any]:
        """The five outputs of the duration model, durations first."""
        outputs: list[Any] = models["duration"].run(None, duration_feeds(item.tokens, item.voice, item.speed))
        return outputs

    def _features(self, number: int, models: Models, seed: int) -> Features:
        """Decoder inputs of a whole utterance in the float model's time."""
        durations = self._durations[number]
        _, encoded, ref_style, prosody, style = self._run_duration(models, self._recorded[number])
        f0, energy, noise = models["prosody"].run(None, prosody_feeds(prosody, style, durations, corpus_noise(seed)))
        aligned = align(encoded, durations)
        return {
            "aligned_features": aligned, "f0_contour": f0, "energy": energy, "noise": noise, "ref_style": ref_style
        }  # fmt: skip

    def _window(self, number: int, features: Features) -> Features:
        """The decoder's inputs for the middle of an utterance."""
        start = (self._recorded[number].frames - self._bucket.frames) // 2
        return pad_to_bucket(crop(features, self._bucket.frames, start), self._bucket)

    def _speak(self, models: Models, window: Features) -> Array:
        return trim(models["decoder"].run(None, window)[0], self._bucket.frames)
