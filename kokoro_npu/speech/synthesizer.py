"""Phonemes and a voice to audio: the whole path through the split model, utterance by utterance."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Array, Bucket
from kokoro_npu.host.frontend import Frontend, Prepared
from kokoro_npu.host.source_noise import speech_noise
from kokoro_npu.host.steps import pad_to_bucket, select_bucket, trim
from kokoro_npu.host.tokens import tokenize, voice_row
from kokoro_npu.machine import THREADS
from kokoro_npu.speech.alphabet import check_phonemes
from kokoro_npu.speech.joining import shape
from kokoro_npu.speech.models import Models
from kokoro_npu.speech.npu import decoder_session
from kokoro_npu.speech.utterances import TARGET_PHONEMES, Boundary, boundary_at_end, cut, utterances

MIN_SPEED, MAX_SPEED = 0.25, 4.0
_FRAMES_PER_PHONEME = 3
"""Of ordinary speech, to choose how many sentences share an utterance."""


@dataclass(frozen=True)
class SpokenUtterance:
    """One utterance as it was spoken.

    Attributes:
        phonemes: what was said.
        frames: L, the sum of the durations.
        bucket: the decoder that ran.
        audio: [600 L] float32 at 24 kHz, unless it was shaped for joining.
    """

    phonemes: str
    frames: int
    bucket: Bucket
    audio: Array


def check(models: Models, phonemes: str, voice: str, speed: float) -> None:
    """Require that this can be said; no model is loaded for it.

    Raises:
        KokoroNpuError: unknown symbol, voice, or a speed out of range, with what is near.
    """
    check_phonemes(phonemes, models.vocab, "phonemes")
    voice_row(models.voices, voice, "a")
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise KokoroNpuError(f"speed {speed:g} is out of range; use {MIN_SPEED:g} to {MAX_SPEED:g}, 1 is normal")


class Synthesizer:
    """The split model on ONNX Runtime: the CPU, and an NPU for decoders that are context binaries.

    Decoders are loaded when their bucket is first needed.

    Args:
        models: the files, see `kokoro_npu.speech.models`.
        threads: of each session.
    """

    def __init__(self, models: Models, threads: int = THREADS) -> None:
        self.models = models
        self._frontend = Frontend(models.duration, models.prosody, threads)
        self._target = min(TARGET_PHONEMES, max(models.decoders) // _FRAMES_PER_PHONEME)
        self._session = cache(lambda frames: decoder_session(models.decoders[frames], threads))

    def prepare(self, phonemes: str, voice: str, speed: float, seed: int, index: int) -> Prepared:
        """Run the two CPU models on one utterance.

        Args:
            phonemes: at most 510 symbols of the alphabet.
            voice: name of a voice; its row is that of the number of symbols, as upstream chooses.
            speed: divides durations.
            seed: of the source noise.
            index: number of the utterance in the speech.

        Raises:
            KokoroNpuError: it cannot be said.
        """
        check(self.models, phonemes, voice, speed)
        tokens = tokenize(phonemes, self.models.vocab, "phonemes")
        row = voice_row(self.models.voices, voice, phonemes)
        return self._frontend.prepare(tokens, row, speed, speech_noise(seed, index))

    def decode(self, phonemes: str, prepared: Prepared) -> SpokenUtterance:
        """Run the decoder of the smallest bucket that holds an utterance.

        Raises:
            KokoroNpuError: none does.
        """
        bucket = select_bucket(prepared.frames, self.models.decoders)
        audio = self._session(bucket.frames).run(None, pad_to_bucket(prepared.features, bucket))[0]
        return SpokenUtterance(phonemes, prepared.frames, bucket, trim(audio, prepared.frames))

    def speak(
        self, paragraphs: Iterable[str], voice: str, speed: float = 1.0, seed: int = 0, prompt: bool = False
    ) -> Iterator[SpokenUtterance]:
        """Speak text of any length; each utterance comes as soon as it is decoded, shaped for joining.

        The audio of the utterances, one after the other, is the speech. A text that is one utterance sounds exactly
        as `prepare` and `decode` make it.

        Args:
            paragraphs: phonemes of each.
            voice: as in `prepare`.
            speed: as in `prepare`.
            seed: as in `prepare`.
            prompt: keep the first utterance short: one sentence, and of one that is too long for the smallest bucket
                the part before a comma or the like.
        """
        left = list(paragraphs)
        before, index = None, 0
        while left:
            waiting = utterances(left.pop(0), self._target, prompt=prompt and index == 0)
            while waiting:
                phonemes = waiting.pop(0)
                prepared = self.prepare(phonemes, voice, speed, seed, index)
                if prepared.frames > max(self.models.decoders) and len(phonemes) > 1:
                    waiting[:0] = cut(phonemes)
                    continue
                if prompt and index == 0 and prepared.frames > min(self.models.decoders):
                    head, tail = cut(phonemes)
                    if boundary_at_end(head) < Boundary.WORD:
                        prompt = False
                        waiting[:0] = [head, tail]
                        continue
                spoken = self.decode(phonemes, prepared)
                after = boundary_at_end(phonemes) if waiting else Boundary.PARAGRAPH if left else None
                yield replace(spoken, audio=shape(spoken.audio, before, after))
                before, index = after, index + 1
