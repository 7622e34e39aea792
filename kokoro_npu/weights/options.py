"""A source's options, checked before any download: typos, gaps and wrong values are said in one line."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kokoro_npu.errors import KokoroNpuError, did_you_mean

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Kind(NamedTuple):
    """What an option may be: in words, and as a test."""

    words: str
    fits: Callable[[Any], bool]


ANY = Kind("anything", lambda _: True)
TEXT = Kind("a text", lambda value: isinstance(value, str) and value != "")
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
SEED = Kind("an integer of 0 or more", lambda value: type(value) is int and value >= 0)
SHA256 = Kind(
    "a sha256 (64 lower-case hex digits)", lambda value: isinstance(value, str) and bool(_SHA256.fullmatch(value))
)
OPTIONAL_SHA256 = Kind(f"null or {SHA256.words}", lambda value: value is None or SHA256.fits(value))
LIST = Kind("a list with something in it", lambda value: isinstance(value, list) and bool(value))


def check(options: Any, kinds: Mapping[str, Kind], where: str) -> None:
    """Require a mapping with exactly the keys of ``kinds``, each of its kind.

    Raises:
        KokoroNpuError: names the option at fault.
    """
    if not isinstance(options, Mapping):
        raise KokoroNpuError(f"{where} must be a mapping of {', '.join(kinds)}, not {options!r}")
    for key in options:
        if key not in kinds:
            raise KokoroNpuError(f"{where}.{key} is not an option; {did_you_mean(key, kinds)}")
    for key, kind in kinds.items():
        if key not in options:
            raise KokoroNpuError(f"{where}.{key} is missing; see conf/weights/")
        if not kind.fits(options[key]):
            raise KokoroNpuError(f"{where}.{key} must be {kind.words}, not {options[key]!r}")
