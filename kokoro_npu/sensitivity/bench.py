"""What a trial is measured on: windows of utterances through all three models, of which one has a part quantized.

Durations and the source are held fixed, so that the waveforms stay comparable sample by sample: a moved duration or a
drifting phase would hide what the ear hears of everything else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from kokoro_npu.audio import metrics
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import SAMPLES_PER_FRAME, Array, Bucket
from kokoro_npu.host.steps import align, crop, pad_to_bucket, trim
from kokoro_npu.sensitivity.analysis import Bench, Case, activation_cases, weight_cases

Measure = Callable[[], tuple[float, float]]


def choose_windows(recorded: Sequence[ReferenceUtterance], frames: int, count: int) -> list[ReferenceUtterance]:
    """The ``count`` shortest utterances of at least ``frames`` frames.

    Raises:
        KokoroNpuError: there are not so many.
    """
    long_enough = sorted((item for item in recorded if item.frames >= frames), key=lambda item: (item.frames, item.id))
    if len(long_enough) < count:
        raise KokoroNpuError(f"trials: {len(long_enough)} utterances hold a window of {frames} frames, not {count}")
    return long_enough[:count]


class TrialBench:
    """The three models on some windows, and the trials of all their parts.

    Args:
        duration: ``kokoro_duration.onnx``.
        prosody: ``kokoro_prosody.onnx``.
        decoder: of the bucket that is as long as a window.
        recorded: utterances; the middle of each is a window.
        frames: of a window.
        weight_bits: of the trials of weights.
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
        self.bucket = Bucket(frames)
        self.recorded = recorded
        self._weight_bits = weight_bits
        models = {"duration": duration, "prosody": prosody, "decoder": decoder}
        self._cases = {name: weight_cases(model) for name, model in models.items()}
        self._activation_cases = activation_cases(decoder)
        self._benches = {name: Bench(model) for name, model in models.items()}
        self._float = {name: bench.session() for name, bench in self._benches.items()}
        self._durations = [self._repeat(item) for item in recorded]
        # The float models' own outputs, so that a trial differs by its own part alone.
        self._text = [self._run_duration(self._float["duration"], item) for item in recorded]
        self._prosody = [self._run_prosody(self._float["prosody"], n) for n in range(len(recorded))]
        windows = [self._window(n) for n in range(len(recorded))]
        self._truth = [self._run_decoder(self._float["decoder"], window) for window in windows]
        touched = [name for case in self._activation_cases for name in case.activations]
        self._ranges = self._benches["decoder"].ranges(touched, windows)

    def trials(self) -> Iterator[tuple[Case, Measure]]:
        """Every part that is tried, with what measures it."""
        for model, measure in (
            ("duration", self._try_duration),
            ("prosody", self._try_prosody),
            ("decoder", self._try_decoder),
        ):
            for case in self._cases[model]:
                yield case, lambda case=case, measure=measure: measure(case)  # type: ignore[misc]
        for case in self._activation_cases:
            yield case, lambda case=case: self._try_decoder(case)  # type: ignore[misc]

    def floor(self) -> float:
        """Log-mel distance between the float models and themselves with another draw of the source's noise.

        Whoever compares recordings of models that draw their own noise sees no damage below it.
        """
        count = len(self.recorded)
        redrawn = [self._run_prosody(self._float["prosody"], n, seed=count + n) for n in range(count)]
        return self._judge(self._window(n, prosody=outputs) for n, outputs in enumerate(redrawn))[0]

    def _try_duration(self, case: Case) -> tuple[float, float]:
        session = self._session("duration", case)
        texts = [self._run_duration(session, item) for item in self.recorded]
        return self._judge(self._window(n, text=text) for n, text in enumerate(texts))

    def _try_prosody(self, case: Case) -> tuple[float, float]:
        session = self._session("prosody", case)
        outputs = [self._run_prosody(session, n) for n in range(len(self.recorded))]
        return self._judge(self._window(n, prosody=output) for n, output in enumerate(outputs))

    def _try_decoder(self, case: Case) -> tuple[float, float]:
        session = self._session("decoder", case)
        return self._judge((self._window(n) for n in range(len(self.recorded))), session)

    def _session(self, model: str, case: Case) -> ort.InferenceSession:
        return self._benches[model].session(case, self._weight_bits, 8, self._ranges)

    def _judge(
        self, windows: Iterator[dict[str, Array]], decoder: ort.InferenceSession | None = None
    ) -> tuple[float, float]:
        """Mean log-mel distance and the SNR of all windows together against the float models."""
        audio = [self._run_decoder(decoder or self._float["decoder"], window) for window in windows]
        distances = [metrics.logmel_mae(truth, heard) for truth, heard in zip(self._truth, audio, strict=True)]
        return float(np.mean(distances)), metrics.snr_db(np.concatenate(self._truth), np.concatenate(audio))

    def _window(
        self, number: int, text: tuple[Array, ...] | None = None, prosody: tuple[Array, ...] | None = None
    ) -> dict[str, Array]:
        """Decoder inputs of a window, from the float models but for what is given."""
        item = self.recorded[number]
        encoded, ref_style, features, style = text or self._text[number]
        if text is not None:
            prosody = self._run_prosody(self._float["prosody"], number, features, style)
        f0, energy, noise = prosody or self._prosody[number]
        if prosody is not None and not np.array_equal(f0, self._prosody[number][0]):
            noise = self._prosody[number][2]
        whole = {
            "aligned_features": align(encoded, self._durations[number]),
            "f0_contour": f0,
            "energy": energy,
            "noise": noise,
            "ref_style": ref_style,
        }
        start = (item.frames - self.bucket.frames) // 2
        return pad_to_bucket(crop(whole, self.bucket.frames, start), self.bucket)

    def _repeat(self, item: ReferenceUtterance) -> npt.NDArray[np.int32]:
        durations: npt.NDArray[np.int32] = self._float["duration"].run(["durations"], _duration_inputs(item))[0]
        return durations

    def _run_duration(self, session: ort.InferenceSession, item: ReferenceUtterance) -> tuple[Array, ...]:
        names = ["encoded_text", "ref_style", "prosody_features", "prosody_style"]
        return tuple(session.run(names, _duration_inputs(item)))

    def _run_prosody(
        self,
        session: ort.InferenceSession,
        number: int,
        features: Array | None = None,
        style: Array | None = None,
        seed: int | None = None,
    ) -> tuple[Array, ...]:
        item = self.recorded[number]
        if features is None or style is None:
            _, _, features, style = self._text[number]
        inputs = {
            "aligned_prosody": align(features, self._durations[number]),
            "prosody_style": style,
            "source_noise": np.random.default_rng(number if seed is None else seed).standard_normal(
                (1, 1, SAMPLES_PER_FRAME * item.frames), dtype=np.float32
            ),
        }
        return tuple(session.run(["f0_contour", "energy", "noise"], inputs))

    def _run_decoder(self, session: ort.InferenceSession, window: Mapping[str, Array]) -> Array:
        return trim(session.run(None, dict(window))[0], self.bucket.frames)


def _duration_inputs(item: ReferenceUtterance) -> dict[str, npt.NDArray[np.generic]]:
    return {
        "tokens": item.tokens,
        "token_length": np.array([item.tokens.shape[1]], np.int64),
        "voice_embedding": item.voice,
        "speed": np.array([item.speed], np.float32),
    }
