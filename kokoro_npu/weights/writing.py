"""Writes the canonical weight files (:mod:`kokoro_npu.weights.canonical`), all checked before the first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic, write_json
from kokoro_npu.geometry import VOICE_DIM
from kokoro_npu.weights.canonical import CONFIG, MODEL, SOURCE, VOICE_ROWS, VOICES, Tensors
from kokoro_npu.weights.kmodel import tensor_table

_NAMED = 5
"""How many names of one fault a message lists before it only counts."""


def write(
    out_dir: Path,
    tensors: Mapping[str, NDArray[np.float32]],
    voices: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any],
    source: Mapping[str, Any],
) -> None:
    """Check tensors and voices, then write the four files; the same arguments give the same bytes.

    Args:
        out_dir: gets the files.
        tensors: name to tensor, as `kmodel.tensor_table` lists them.
        voices: name to voice pack, [510, 256] or upstream's [510, 1, 256].
        config: upstream's ``config.json``.
        source: where they came from; gets the number of tensors and the voice names.

    Raises:
        KokoroNpuError: a tensor or a voice is at fault; the message names it.
    """
    label = f"weights source {source['source']}"
    check_tensors(tensors, tensor_table(config), label)
    packs = check_voices(voices, label)
    # save() and not save_file(): the latter leaves files that only their owner can read.
    with atomic(out_dir / MODEL) as tmp:
        tmp.write_bytes(save({name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}))
    with atomic(out_dir / VOICES) as tmp:
        tmp.write_bytes(save(packs))
    write_json(out_dir / CONFIG, dict(config))
    write_json(out_dir / SOURCE, {**source, "tensors": len(tensors), "voices": sorted(packs)})


def check_tensors(tensors: Mapping[str, NDArray[Any]], table: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Require exactly the tensors of ``table``, each finite and of its shape.

    Raises:
        KokoroNpuError: names what is missing, extra, misshapen (both shapes) or not finite.
    """
    common = [name for name in table if name in tensors]
    faults = {
        "missing": [name for name in table if name not in tensors],
        "extra": [name for name in tensors if name not in table],
        "misshapen": [
            f"{name} is {list(tensors[name].shape)}, expected {list(table[name])}"
            for name in common
            if tensors[name].shape != table[name]
        ],
        "not finite": [name for name in common if not np.isfinite(tensors[name]).all()],
    }
    found = []
    for fault, names in faults.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        found += [f"{fault} {', '.join(names[:_NAMED])}{more}"] if names else []
    if found:
        raise KokoroNpuError(f"{where}: {'; '.join(found)}; these are not the {len(table)} tensors of this model")


def check_voices(voices: Mapping[str, NDArray[Any]], where: str) -> Tensors:
    """Voice packs as [510, 256] float32; upstream's extra middle axis ([510, 1, 256]) is dropped.

    Raises:
        KokoroNpuError: a voice of another shape or with values that are not finite, named.
    """
    checked: Tensors = {}
    for name in sorted(voices):
        pack = voices[name]
        if pack.shape not in ((VOICE_ROWS, 1, VOICE_DIM), (VOICE_ROWS, VOICE_DIM)) or not np.isfinite(pack).all():
            raise KokoroNpuError(
                f"{where}: voice {name} is {list(pack.shape)}; expected [{VOICE_ROWS}, 1, {VOICE_DIM}], all finite"
            )
        checked[name] = np.ascontiguousarray(pack.reshape(VOICE_ROWS, VOICE_DIM), dtype=np.float32)
    return checked
