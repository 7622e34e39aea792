"""Reading a source's options: typos, gaps and wrong types are said in one line, before any download."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from kokoro_npu.errors import KokoroNpuError

_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_keys(options: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    """Require exactly ``keys``.

    Raises:
        KokoroNpuError: an unknown key (with the nearest known one) or a missing key.
    """
    for key in options:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(keys)}"
            raise KokoroNpuError(f"{where}.{key} is not an option; {hint}")
    if missing := [key for key in keys if key not in options]:
        raise KokoroNpuError(f"{where}.{missing[0]} is missing; see conf/weights/")


def text(options: Mapping[str, Any], key: str, where: str) -> str:
    """A non-empty string option."""
    value = options[key]
    if not isinstance(value, str) or not value:
        raise KokoroNpuError(f"{where}.{key} must be a non-empty string, not {value!r}")
    return value


def sha256_pin(value: Any, where: str, optional: bool = False) -> str | None:
    """A pinned SHA-256 in lower-case hex; None only where ``optional``."""
    if value is None and optional:
        return None
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise KokoroNpuError(f"{where} must be a sha256 (64 lower-case hex digits), not {value!r}")
    return value
