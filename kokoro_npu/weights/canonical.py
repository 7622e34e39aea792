"""The canonical weight files that every source ends in, and that everything downstream reads.

``model.safetensors``   the used tensors, float32, with the state-dict names of `kokoro.KModel` without weight
norm
``voices.safetensors``  voice name -> [510, 256] float32; row n is the style for n + 1 phonemes
``config.json``         upstream's config, with its phoneme vocabulary
``source.json``         where the weights came from: source, revision or packages, hashes, dither
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load_file

from kokoro_npu import geometry
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json

REPOSITORY = "hexgrad/Kokoro-82M"

MODEL = "model.safetensors"
VOICES = "voices.safetensors"
CONFIG = "config.json"
SOURCE = "source.json"
FILES = (MODEL, VOICES, CONFIG, SOURCE)

VOICE_ROWS = 510

Tensors = dict[str, NDArray[np.float32]]

_NAMED = 5
"""How many names of one fault a message lists before it only counts."""


def upstream_config(vocab: Mapping[str, int]) -> dict[str, Any]:
    """The ``config.json`` of hexgrad/Kokoro-82M v1.0 around a vocabulary, for sources that lack it."""
    return {
        "istftnet": {
            "upsample_kernel_sizes": [20, 12],
            "upsample_rates": list(geometry.UPSAMPLE_RATES),
            "gen_istft_hop_size": geometry.HOP,
            "gen_istft_n_fft": geometry.N_FFT,
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
            "resblock_kernel_sizes": [3, 7, 11],
            "upsample_initial_channel": 512,
        },
        "dim_in": 64,
        "dropout": 0.2,
        "hidden_dim": geometry.HIDDEN_DIM,
        "max_conv_dim": 512,
        "max_dur": 50,
        "multispeaker": True,
        "n_layer": 3,
        "n_mels": 80,
        "n_token": 178,
        "style_dim": geometry.STYLE_DIM,
        "text_encoder_kernel_size": 5,
        "plbert": {
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 2048,
            "max_position_embeddings": geometry.MAX_TOKENS,
            "num_hidden_layers": 12,
            "dropout": 0.1,
        },
        "vocab": dict(vocab),
    }


def check_config(config: Any, where: str) -> None:
    """Require the keys KModel reads and the geometry the pipeline is built for.

    Raises:
        KokoroNpuError: names the first key that is missing or different, and both values.
    """
    if not isinstance(config, Mapping):
        raise KokoroNpuError(f"{where}: expected a JSON object with upstream's config.json keys")

    def value(*path: str) -> Any:
        found: Any = config
        for key in path:
            if not isinstance(found, Mapping) or key not in found:
                raise KokoroNpuError(f"{where}: key {'.'.join(path)} is missing; take upstream's config.json")
            found = found[key]
        return found

    reference = upstream_config({})
    for key in reference:
        # KModel does not read these two.
        if key not in ("max_conv_dim", "multispeaker"):
            value(key)
    for path, expected in {
        ("istftnet", "upsample_rates"): list(geometry.UPSAMPLE_RATES),
        ("istftnet", "gen_istft_hop_size"): geometry.HOP,
        ("istftnet", "gen_istft_n_fft"): geometry.N_FFT,
        ("hidden_dim",): geometry.HIDDEN_DIM,
        ("style_dim",): geometry.STYLE_DIM,
        ("plbert", "max_position_embeddings"): geometry.MAX_TOKENS,
    }.items():
        if value(*path) != expected:
            raise KokoroNpuError(
                f"{where}: {'.'.join(path)} is {value(*path)}, but this pipeline is built for {expected} "
                "(kokoro_npu/geometry.py); use Kokoro v1.0's config"
            )
    tokens = value("n_token")
    vocab = value("vocab")
    bad = [k for k, v in vocab.items() if not isinstance(v, int) or not 0 <= v < tokens]
    if not vocab or bad:
        raise KokoroNpuError(f"{where}: vocab must map phonemes to ids in 0..{tokens - 1}; at fault: {_list(bad)}")


def check_tensors(tensors: Mapping[str, NDArray[Any]], table: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Require exactly the tensors of ``table``, each float32, finite and of its shape.

    Raises:
        KokoroNpuError: names what is missing, extra, misshapen (both shapes), mistyped or not finite.
    """
    faults: list[str] = []
    if missing := [name for name in table if name not in tensors]:
        faults.append(f"missing {_list(missing)}")
    if extra := [name for name in tensors if name not in table]:
        faults.append(f"extra {_list(extra)}")
    common = [name for name in table if name in tensors]
    if misshapen := [n for n in common if tuple(tensors[n].shape) != tuple(table[n])]:
        shown = [f"{n} is {shape_text(tensors[n].shape)}, expected {shape_text(table[n])}" for n in misshapen]
        faults.append(f"misshapen {_list(shown)}")
    if mistyped := [n for n in common if tensors[n].dtype != np.float32]:
        faults.append(f"not float32 {_list(mistyped)}")
    elif bad := [n for n in common if not np.isfinite(tensors[n]).all()]:
        faults.append(f"not finite {_list(bad)}")
    if faults:
        raise KokoroNpuError(f"{where}: {'; '.join(faults)}; these are not the {len(table)} tensors of this model")


def load_tensors(weights_dir: Path | str) -> Tensors:
    """All tensors of ``model.safetensors``, torch name -> float32 array.

    Raises:
        KokoroNpuError: the file is missing or not safetensors.
    """
    return _load_safetensors(Path(weights_dir) / MODEL)


def load_voices(weights_dir: Path | str) -> Tensors:
    """Voice name -> style pack [510, 256] float32; row n serves n + 1 phonemes.

    Raises:
        KokoroNpuError: the file is missing or not safetensors.
    """
    return _load_safetensors(Path(weights_dir) / VOICES)


def load_config(weights_dir: Path | str) -> dict[str, Any]:
    """Upstream's ``config.json``, the phoneme vocabulary in ``vocab``.

    Raises:
        KokoroNpuError: the file is missing, not JSON, or not of this model's geometry.
    """
    path = Path(weights_dir) / CONFIG
    config: dict[str, Any] = _load_json(path)
    check_config(config, str(path))
    return config


def load_source(weights_dir: Path | str) -> dict[str, Any]:
    """Where the weights came from: ``source``, hashes, ``dither``, ``tensors``, ``voices``.

    Raises:
        KokoroNpuError: the file is missing or not JSON.
    """
    source: dict[str, Any] = _load_json(Path(weights_dir) / SOURCE)
    return source


def source_label(weights_dir: Path | str) -> str:
    """The name reports give these weights: ``wheel``, ``wheel+dither``, ``hub`` or ``file``."""
    source = load_source(weights_dir)
    return f"{source['source']}+dither" if source.get("dither") else str(source["source"])


def _load_safetensors(path: Path) -> Tensors:
    _require(path)
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise KokoroNpuError(
            f"{path} is not a whole safetensors file ({error}); run stage fetch-weights again"
        ) from None


def _load_json(path: Path) -> Any:
    _require(path)
    try:
        return read_json(path)
    except ValueError as error:
        raise KokoroNpuError(f"{path} is not JSON ({error}); run stage fetch-weights again") from None


def _require(path: Path) -> None:
    if not path.is_file():
        raise KokoroNpuError(f"{path} does not exist; run `dvc repro fetch-weights`")


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as messages show it: ``[510, 256]``."""
    return str(list(shape))


def _list(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
