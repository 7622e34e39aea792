"""The committed corpus: what calibrates the quantizer, and what judges the result."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from kokoro_npu.errors import KokoroNpuError

CALIBRATION = "calibration"
EVALUATION = "evaluation"


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
    path = Path(path)
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["utterances"]
    except OSError as error:
        raise KokoroNpuError(f"corpus {path}: {error.strerror}; the parameter `corpus` names it") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise KokoroNpuError(f"corpus {path}: expected YAML with a list `utterances`: {error}") from error
    corpus: list[Utterance] = []
    for number, entry in enumerate(entries, start=1):
        try:
            corpus.append(Utterance(**entry))
        except TypeError as error:
            raise KokoroNpuError(f"corpus {path}, utterance {number}: {error}") from error
    _check(corpus, path)
    return corpus


def _check(corpus: list[Utterance], path: Path) -> None:
    for field in ("id", "text"):
        values = [getattr(utterance, field) for utterance in corpus]
        repeated = {value for value in values if values.count(value) > 1}
        if repeated:
            raise KokoroNpuError(f"corpus {path}: {field} {sorted(repeated)[0]!r} occurs more than once")
    for part in (CALIBRATION, EVALUATION):
        if not any(utterance.part == part for utterance in corpus):
            raise KokoroNpuError(f"corpus {path}: no utterance of the part {part!r}")
    for utterance in corpus:
        if utterance.part not in (CALIBRATION, EVALUATION):
            raise KokoroNpuError(
                f"corpus {path}, {utterance.id}: part is {utterance.part!r}; use {CALIBRATION} or {EVALUATION}"
            )
        if not isinstance(utterance.speed, int | float) or utterance.speed <= 0:
            raise KokoroNpuError(f"corpus {path}, {utterance.id}: speed is {utterance.speed!r}; it must be above 0")
