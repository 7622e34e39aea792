"""The committed corpus: what calibrates the quantizer, and what judges the result."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from kokoro_npu.corpus.reference_set import CALIBRATION, EVALUATION
from kokoro_npu.errors import KokoroNpuError


@dataclass(frozen=True)
class Utterance:
    """One line of the corpus.

    Attributes:
        id: unique name, also of its files.
        part: ``calibration`` or ``evaluation``.
        voice: name of a voice pack.
        speed: durations are divided by it.
        text: what is said.
        phonemes: ``text`` in Kokoro's phoneme alphabet.
    """

    id: str
    part: str
    voice: str
    speed: float
    text: str
    phonemes: str


def load_corpus(path: Path | str) -> list[Utterance]:
    """Read and check a corpus file.

    Raises:
        KokoroNpuError: the file is missing, is not of this form, repeats an id or a text, or lacks a part.
    """
    try:
        entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))["utterances"]
    except OSError as error:
        raise KokoroNpuError(f"corpus {path}: {error.strerror}; the parameter `corpus` names it") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise KokoroNpuError(f"corpus {path}: expected YAML with a list `utterances`: {error}") from error
    corpus: list[Utterance] = []
    for number, entry in enumerate(entries, start=1):
        try:
            utterance = Utterance(**entry)
            if utterance.part not in (CALIBRATION, EVALUATION):
                raise ValueError(f"part is {utterance.part!r}; use {CALIBRATION} or {EVALUATION}")
            if not isinstance(utterance.speed, int | float) or utterance.speed <= 0:
                raise ValueError(f"speed is {utterance.speed!r}; it must be above 0")
            if any(utterance.id == other.id or utterance.text == other.text for other in corpus):
                raise ValueError(f"its id {utterance.id!r} or its text occurs more than once")
        except (TypeError, ValueError) as error:
            raise KokoroNpuError(f"corpus {path}, utterance {number}: {error}") from error
        corpus.append(utterance)
    if len({utterance.part for utterance in corpus}) < 2:
        raise KokoroNpuError(f"corpus {path}: both parts must have utterances, {CALIBRATION} and {EVALUATION}")
    return corpus
