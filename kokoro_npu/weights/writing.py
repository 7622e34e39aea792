"""Writes the canonical weight files (:mod:`kokoro_npu.weights.canonical`), all checked before the first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from kokoro_npu import geometry
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic, write_json
from kokoro_npu.weights.canonical import (
    CONFIG,
    MODEL,
    SOURCE,
    VOICE_ROWS,
    VOICES,
    Tensors,
    check_config,
    check_tensors,
    shape_text,
)
from kokoro_npu.weights.kmodel import tensor_table


def check_voices(voices: Mapping[str, NDArray[Any]], where: str) -> Tensors:
    """Voice packs as [510, 256] float32; upstream's extra middle axis ([510, 1, 256]) is dropped.

    Raises:
        KokoroNpuError: no voice at all, or one of another shape or with values that are not finite, named.
    """
    if not voices:
        raise KokoroNpuError(f"{where}: no voices; at least one is needed")
    checked: Tensors = {}
    for name in sorted(voices):
        pack = np.asarray(voices[name])
        if pack.shape not in ((VOICE_ROWS, 1, geometry.VOICE_DIM), (VOICE_ROWS, geometry.VOICE_DIM)):
            raise KokoroNpuError(
                f"{where}: voice {name} is {shape_text(pack.shape)}, expected [{VOICE_ROWS}, 1, {geometry.VOICE_DIM}]"
            )
        if pack.dtype.kind != "f" or not np.isfinite(pack).all():
            raise KokoroNpuError(f"{where}: voice {name} holds values that are not finite floats")
        checked[name] = np.ascontiguousarray(pack.reshape(VOICE_ROWS, geometry.VOICE_DIM), dtype=np.float32)
    return checked


def write(
    out_dir: Path | str,
    tensors: Mapping[str, NDArray[np.float32]],
    voices: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any],
    source: Mapping[str, Any],
) -> None:
    """Check everything, then write the four files; the same arguments give the same bytes.

    Nothing is written unless all of it passed its checks. ``source`` gets the number of tensors and the voice
    names.

    Raises:
        KokoroNpuError: a tensor, a voice or the config is at fault; the message names it.
    """
    out_dir = Path(out_dir)
    label = f"weights source {source['source']}"
    check_config(config, f"{label}: {CONFIG}")
    check_tensors(tensors, tensor_table(config), label)
    packs = check_voices(voices, label)
    # save() and not save_file(): the latter leaves files that only their owner can read.
    with atomic(out_dir / MODEL) as tmp:
        tmp.write_bytes(save({name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}))
    with atomic(out_dir / VOICES) as tmp:
        tmp.write_bytes(save(packs))
    write_json(out_dir / CONFIG, dict(config))
    write_json(out_dir / SOURCE, {**source, "tensors": len(tensors), "voices": sorted(packs)})
