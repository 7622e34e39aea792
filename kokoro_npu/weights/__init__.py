"""Weights as data: sources in, canonical files out, and loaders for everything downstream.

`sources.fetch` writes the canonical files (see `kokoro_npu.weights.canonical`) from one source; the loaders here read
them and know no source, so that a change in one does not rerun what only loads. `load_kmodel` imports kokoro (and with
it spaCy) only when it is called.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from kokoro_npu.weights.canonical import (
    FILES,
    load_config,
    load_source,
    load_tensors,
    load_voices,
    source_label,
)

if TYPE_CHECKING:
    from kokoro import KModel

__all__ = [
    "FILES",
    "load_config",
    "load_kmodel",
    "load_source",
    "load_tensors",
    "load_voices",
    "source_label",
]


def load_kmodel(weights_dir: Path | str) -> "KModel":
    """`kokoro.KModel` with the canonical weights; see `kokoro_npu.weights.kmodel.load_kmodel`."""
    from kokoro_npu.weights.kmodel import load_kmodel as load

    return load(weights_dir)
