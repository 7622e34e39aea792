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
        # The float models' own outputs, so that what is heard differs by the quantized part alone.
        self._text = [self._run_duration(self._float["duration"], item) for item in recorded]
        self._prosody = [self._run_prosody(self._float["prosody"], n, text, n) for n, text in enumerate(self._text)]
        windows = [self._window(n) for n in range(len(recorded))]
        self._truth = [self._run_decoder(self._float["decoder"], window) for window in windows]
        self._ranges = measure(decoder, windows)

    def parts(self) -> Iterator[tuple[Part, Measure]]:
        """Every part, with what measures it: log-mel distance and SNR against the float models."""
        for model, part in self._parts:
            yield part, partial(self._measure, model, part)

    def floor(self) -> float:
        """Log-mel distance between the float models and themselves with another draw of the source's noise.

        Whoever compares recordings of models that draw their own noise sees no damage below it.
        """
        return self._judge(redrawn=True)[0]

    def _measure(self, model: str, part: Part) -> tuple[float, float]:
        return self._judge(**{model: self._quantizers[model].session(part, self._weight_bits, self._ranges)})

    def _judge(
        self,
        duration: ort.InferenceSession | None = None,
        prosody: ort.InferenceSession | None = None,
        decoder: ort.InferenceSession | None = None,
        redrawn: bool = False,
    ) -> tuple[float, float]:
        """Mean log-mel distance, and the SNR of all windows together, with some models in place of the float ones."""
        windows = [self._window(n, duration, prosody, redrawn) for n in range(len(self._recorded))]
        audio = [self._run_decoder(decoder or self._float["decoder"], window) for window in windows]
        distances = [metrics.logmel_mae(truth, heard) for truth, heard in zip(self._truth, audio, strict=True)]
        return float(np.mean(distances)), metrics.snr_db(np.concatenate(self._truth), np.concatenate(audio))

    def _window(
        self,
        number: int,
        duration: ort.InferenceSession | None = None,
        prosody: ort.InferenceSession | None = None,
        redrawn: bool = False,
    ) -> dict[str, Array]:
        """Decoder inputs of a window, from the float models but for those given."""
        item, text = self._recorded[number], self._text[number]
        if duration is not None:
            text = self._run_duration(duration, item)
        f0, energy, noise = self._prosody[number]
        if duration is not None or prosody is not None or redrawn:
            seed, exact = number + redrawn * len(self._recorded), f0
            f0, energy, source = self._run_prosody(prosody or self._float["prosody"], number, text, seed)
            # Of another pitch, a source drifts.
            noise = source if np.array_equal(f0, exact) else noise
        _, encoded, ref_style, *_ = text
        whole = {
            "aligned_features": align(encoded, self._text[number][0]),
            "f0_contour": f0,
            "energy": energy,
            "noise": noise,
            "ref_style": ref_style,
        }
        start = (item.frames - self._bucket.frames) // 2
        return pad_to_bucket(crop(whole, self._bucket.frames, start), self._bucket)

    def _run_duration(self, session: ort.InferenceSession, item: ReferenceUtterance) -> list[Any]:
        """The five outputs of the duration model, durations first."""
        outputs: list[Any] = session.run(None, duration_feeds(item.tokens, item.voice, item.speed))
        return outputs

    def _run_prosody(self, session: ort.InferenceSession, number: int, text: list[Any], seed: int) -> list[Array]:
        """F0, energy and source of an utterance in the float model's time."""
        features, style = text[3:]
        feeds = prosody_feeds(features, style, self._text[number][0], corpus_noise(seed))
        outputs: list[Array] = session.run(None, feeds)
        return outputs

    def _run_decoder(self, session: ort.InferenceSession, window: dict[str, Array]) -> Array:
        return trim(session.run(None, window)[0], self._bucket.frames)
