"""Whole models by one measure: text tokens in, audio out, against upstream's unpadded PyTorch model.

Two things would drown the error that quantization makes, and are therefore held fixed where it is measured:

* durations: a token that lasts one frame longer shifts all that follows. They are those of the float model in every
  comparison, and are counted on their own (`moved_durations`).
* the source: its phase is a running sum of F0, so that an F0 that is a thousandth off turns the waveform over within a
  second, which nobody hears and every SNR punishes. With the reference's source (``given``) SNR means something; with
  the model's own (``own``) only the log-mel distance does.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from tqdm import tqdm

from kokoro_npu.audio import metrics
from kokoro_npu.build import places
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.host.frontend import Frontend, duration_feeds, prosody_feeds
from kokoro_npu.host.source_noise import corpus_noise
from kokoro_npu.host.steps import pad_to_bucket, select_bucket, trim
from kokoro_npu.variants.monolith import Monolith

GIVEN, OWN = "given", "own"
SOURCES = (GIVEN, OWN)

MONOLITH, MONOLITH_EXACT = "monolith", "monolith-exact-istft"
"""The public int8 model with its own inverse STFT, and its spectrum with upstream's."""

Durations = npt.NDArray[np.int32]
Feeds = dict[str, npt.NDArray]
Row = dict[str, Any]


@dataclass(frozen=True)
class SplitModel:
    """A whole model of this project, as files.

    Attributes:
        cpu: directory of the duration and the prosody model.
        decoders: directory of the decoders and of the weights that they share.
        frames: buckets of the decoders.
    """

    cpu: Path
    decoders: Path
    frames: Sequence[int]

    @property
    def duration(self) -> Path:
        """The duration model."""
        return self.cpu / places.DURATION_MODEL

    @property
    def prosody(self) -> Path:
        """The prosody model."""
        return self.cpu / places.PROSODY_MODEL

    def cpu_bytes(self) -> int:
        """Bytes of the CPU models."""
        return self.duration.stat().st_size + self.prosody.stat().st_size

    def bytes(self, frames: Sequence[int]) -> int:
        """Bytes of all files that speak with the decoders of some buckets."""
        files = [self.decoders / places.SHARED_WEIGHTS, *(places.decoder(self.decoders, size) for size in frames)]
        return self.cpu_bytes() + sum(path.stat().st_size for path in files)


def predicted_durations(model: Path, utterances: Sequence[ReferenceUtterance]) -> dict[str, Durations]:
    """Durations [1, S] by utterance of a duration model."""
    session = cpu_session(model)
    return {
        item.id: session.run(["durations"], duration_feeds(item.tokens, item.voice, item.speed))[0]
        for item in utterances
    }


def moved_durations(found: Mapping[str, npt.NDArray], truth: Mapping[str, Durations]) -> dict[str, int]:
    """How durations by utterance differ from the float model's.

    Returns:
        ``tokens``, ``tokens_moved``, ``frames_moved`` (the sum of the differences), ``frames_moved_max`` (of one token)
        and ``utterances_moved``.
    """
    moved = [np.abs(found[name].reshape(-1).astype(np.int64) - truth[name].reshape(-1)) for name in truth]
    return {
        "tokens": sum(difference.size for difference in moved),
        "tokens_moved": sum(int((difference > 0).sum()) for difference in moved),
        "frames_moved": sum(int(difference.sum()) for difference in moved),
        "frames_moved_max": max(int(difference.max()) for difference in moved),
        "utterances_moved": sum(bool(difference.any()) for difference in moved),
    }


def speak_split(
    name: str,
    model: SplitModel,
    utterances: Sequence[ReferenceUtterance],
    truth: Mapping[str, Durations],
    seed: int,
) -> Iterator[Row]:
    """`heard` of every utterance by a split model, from each source; decoder by decoder, one in memory at a time.

    Args:
        name: of the model.
        model: its files.
        utterances: each fits a bucket.
        truth: durations by utterance.
        seed: of the source's noise.
    """
    frontend = Frontend(model.duration, model.prosody)
    by_bucket: dict[int, list[ReferenceUtterance]] = {}
    for item in utterances:
        by_bucket.setdefault(select_bucket(item.frames, model.frames).frames, []).append(item)
    for size, items in sorted(by_bucket.items()):
        session, bucket = cpu_session(places.decoder(model.decoders, size)), Bucket(size)
        for item in items:
            noise = corpus_noise(seed, item.id)
            features = frontend.prepare(item.tokens, item.voice, item.speed, noise, truth[item.id]).features
            for source in SOURCES:
                given = {"noise": item.features["noise"]} if source == GIVEN else {}
                audio = session.run(None, pad_to_bucket({**features, **given}, bucket))[0]
                yield heard(name, item, source, trim(audio, item.frames))


def speak_monolith(
    path: Path, utterances: Sequence[ReferenceUtterance], truth: Mapping[str, Durations]
) -> Iterator[Row]:
    """`heard` of every utterance by the int8 monolith, from both sources, by its own inverse STFT and by upstream's."""
    for source in SOURCES:
        model = Monolith(path, ("durations", "source") if source == GIVEN else ("durations",))
        for item in utterances:
            said = model.run(item.tokens, item.voice, item.speed, truth[item.id], item.features["noise"])
            yield heard(MONOLITH, item, source, said.audio)
            yield heard(MONOLITH_EXACT, item, source, said.exact_audio())


def heard(model: str, item: ReferenceUtterance, source: str, audio: Array) -> Row:
    """A recording as a row: ``model, utterance, frames, source, snr_db, logmel_mae, magspec_corr``."""
    what = {"model": model, "utterance": item.id, "frames": item.frames, "source": source}
    return what | measured(item.reference, audio)


def measured(reference: Array, audio: Array) -> dict[str, float]:
    """The figures of one recording; a missing end counts as silence, a surplus one does not count."""
    fitted = np.zeros_like(reference)
    common = min(len(reference), len(audio))
    fitted[:common] = audio[:common]
    return {
        "snr_db": metrics.snr_db(reference, fitted),
        "logmel_mae": metrics.logmel_mae(reference, fitted),
        "magspec_corr": metrics.magspec_corr(reference, fitted),
    }


def cpu_feeds(duration: ort.InferenceSession, item: ReferenceUtterance, durations: Durations) -> tuple[Feeds, Feeds]:
    """Inputs of the duration and of the prosody model for one utterance; the latter's come from ``duration``."""
    first = duration_feeds(item.tokens, item.voice, item.speed)
    features, style = duration.run(["prosody_features", "prosody_style"], first)
    return first, prosody_feeds(features, style, durations, corpus_noise(0))


def time_ratios(
    base: SplitModel,
    models: Mapping[str, SplitModel],
    utterances: Sequence[ReferenceUtterance],
    truth: Mapping[str, Durations],
    runs: int,
) -> dict[str, float]:
    """Time of both CPU models over that of a base's, in one process, their runs interleaved.

    It is the processor time of one thread: what other processes do on the machine does not enter it, nor do threads
    that spin while they wait.

    Args:
        base: the model that the others are divided by.
        models: by name.
        utterances: what is spoken; each counts with its fastest run.
        truth: durations by utterance.
        runs: of each model and utterance, after one that is not counted.
    """
    sessions = {
        name: (cpu_session(model.duration, 1), cpu_session(model.prosody, 1))
        for name, model in {"": base, **models}.items()
    }
    seconds = dict.fromkeys(sessions, 0.0)
    for item in tqdm(utterances, desc="time cpu models", unit="utterance"):
        inputs = cpu_feeds(sessions[""][0], item, truth[item.id])
        fastest = dict.fromkeys(sessions, math.inf)
        for run in range(1 + runs):
            for name, pair in sessions.items():
                start = time.process_time()
                for session, feeds in zip(pair, inputs, strict=True):
                    session.run(None, feeds)
                if run:
                    fastest[name] = min(fastest[name], time.process_time() - start)
        for name, value in fastest.items():
            seconds[name] += value
    return {name: round(seconds[name] / seconds[""], 3) for name in models}
