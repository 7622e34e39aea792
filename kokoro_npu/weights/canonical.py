"""The canonical weight files that every source ends in: their names, and how they are read.

``model.safetensors``   the used tensors, float32, with the state-dict names of `kokoro.KModel` without weight norm
``voices.safetensors``  voice name -> [510, 256] float32; row n is the style for n + 1 phonemes
``config.json``         upstream's config, with its phoneme vocabulary
``source.json``         where the weights came from: source, revision or packages, hashes, dither
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load_file

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json

MODEL = "model.safetensors"
VOICES = "voices.safetensors"
CONFIG = "config.json"
SOURCE = "source.json"
FILES = (MODEL, VOICES, CONFIG, SOURCE)

MONOLITH = "kokoro-int8.onnx"
"""The int8 export that source ``wheel`` joins in the directory of downloads; it can be measured beside the models."""

VOICE_ROWS = 510

Tensors = dict[str, NDArray[np.float32]]


def load_tensors(weights_dir: Path | str) -> Tensors:
    """All tensors of ``model.safetensors``, torch name -> float32 array.

    Raises:
        KokoroNpuError: the file is missing or damaged, as for all files here.
    """
    tensors: Tensors = _read(Path(weights_dir) / MODEL, load_file)
    return tensors


def load_voices(weights_dir: Path | str) -> Tensors:
    """Voice name -> style pack [510, 256] float32; row n serves n + 1 phonemes."""
    voices: Tensors = _read(Path(weights_dir) / VOICES, load_file)
    return voices


def load_config(weights_dir: Path | str) -> dict[str, Any]:
    """Upstream's ``config.json``, the phoneme vocabulary in ``vocab``."""
    config: dict[str, Any] = _read(Path(weights_dir) / CONFIG, read_json)
    return config


def load_source(weights_dir: Path | str) -> dict[str, Any]:
    """Where the weights came from: ``source``, hashes, ``dither``, ``tensors``, ``voices``."""
    source: dict[str, Any] = _read(Path(weights_dir) / SOURCE, read_json)
    return source


def source_label(weights_dir: Path | str) -> str:
    """The name reports give these weights: ``wheel``, ``wheel+dither``, ``hub`` or ``file``."""
    source = load_source(weights_dir)
    return f"{source['source']}+dither" if source.get("dither") else str(source["source"])


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except FileNotFoundError:
        raise KokoroNpuError(f"{path} does not exist; run `dvc repro fetch-weights`") from None
    except (ValueError, safetensors.SafetensorError) as error:
        raise KokoroNpuError(f"{path} is damaged ({error}); run the stage fetch-weights again") from None
