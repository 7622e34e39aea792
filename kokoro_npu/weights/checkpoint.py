"""Upstream's files: a ``.pth`` of five state dicts, ``config.json``, and ``.pt`` voice packs.

The checkpoint holds ``bert``, ``bert_encoder``, ``predictor``, ``text_encoder`` and ``decoder``, each name
behind DataParallel's ``module.``, convolutions as weight norm's g and v.
"""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from kokoro_npu import geometry
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json
from kokoro_npu.weights.canonical import Tensors
from kokoro_npu.weights.kmodel import tensor_table
from kokoro_npu.weights.writing import write

_AFFINE = re.compile(r".*\.norm\.(weight|bias)")
_UNUSED = re.compile(rf"bert\.pooler\..*|bert\.embeddings\.(position|token_type)_ids|{_AFFINE.pattern}")
"""What no output depends on: ALBERT's pooler, id buffers, identity affines of instance norms."""

_GEOMETRY = {
    "istftnet.upsample_rates": list(geometry.UPSAMPLE_RATES),
    "istftnet.gen_istft_hop_size": geometry.HOP,
    "istftnet.gen_istft_n_fft": geometry.N_FFT,
    "hidden_dim": geometry.HIDDEN_DIM,
    "style_dim": geometry.STYLE_DIM,
    "plbert.max_position_embeddings": geometry.MAX_TOKENS,
}
_OTHER_KEYS = ("dim_in", "dropout", "max_dur", "n_layer", "n_mels", "n_token", "text_encoder_kernel_size", "vocab")


def write_release(
    out_dir: Path, model: Path, config: Path, voices: Mapping[str, Path], source: Mapping[str, Any]
) -> None:
    """Read upstream's files and write the canonical ones.

    Args:
        out_dir: gets the canonical files.
        model: the checkpoint.
        config: its ``config.json``.
        voices: name to voice pack.
        source: where they came from.

    Raises:
        KokoroNpuError: a file, a tensor or a voice is at fault, named.
    """
    upstream = read_config(config)
    packs = {name: _read_voice(path) for name, path in voices.items()}
    write(out_dir, read_model(model, upstream), packs, upstream, source)


def read_config(path: Path) -> dict[str, Any]:
    """Upstream's ``config.json``: all keys that KModel reads, and the geometry that the pipeline is built for.

    Raises:
        KokoroNpuError: the file is no JSON object, or lacks a key or has another value there, named.
    """
    try:
        config: dict[str, Any] = dict(read_json(path))
    except (ValueError, TypeError, OSError) as error:
        raise KokoroNpuError(f"{path} is not a JSON object ({error})") from None
    flat = config | {
        f"{part}.{key}": value for part in ("istftnet", "plbert") for key, value in config.get(part, {}).items()
    }
    for key in (*_GEOMETRY, *_OTHER_KEYS):
        if key not in flat:
            raise KokoroNpuError(f"{path}: key {key} is missing; take upstream's config.json")
        if flat[key] != _GEOMETRY.get(key, flat[key]):
            raise KokoroNpuError(
                f"{path}: {key} is {flat[key]}, but this pipeline is built for {_GEOMETRY[key]} "
                "(kokoro_npu/geometry.py); use Kokoro v1.0's config"
            )
    return config


def read_model(path: Path, config: Mapping[str, Any]) -> Tensors:
    """The used tensors of a checkpoint: ``module.`` stripped, weight norm folded, float32.

    Whether they are the whole model is `writing.check_tensors`' business.

    Raises:
        KokoroNpuError: not a checkpoint of tensors, or the affine of an instance norm that is not the identity.
    """
    table = tensor_table(config)
    tensors: Tensors = {}
    for name, value in fold_weight_norm(_flatten(_load(path), path)).items():
        if name in table or not _UNUSED.fullmatch(name):
            tensors[name] = value.detach().to(torch.float32).contiguous().numpy()
        elif _AFFINE.fullmatch(name) and not torch.all(value == (1.0 if name.endswith(".weight") else 0.0)):
            raise KokoroNpuError(
                f"{path}: extra {name}: this affine is not the identity, and the pipeline has no place for it"
            )
    return tensors


def fold_weight_norm(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Replace weight norm's magnitude g and direction v by ``weight`` = v * g / |v|, |v| over all but axis 0.

    Half of a pair is left as it is.
    """
    folded = dict(tensors)
    for name in tensors:
        base = name.removesuffix("_g")
        if name.endswith(".weight_g") and f"{base}_v" in tensors:
            g, v = folded.pop(name).float(), folded.pop(f"{base}_v").float()
            norm = torch.linalg.vector_norm(v, dim=tuple(range(1, v.ndim)), keepdim=True)
            folded[base] = v * (g / norm)
    return folded


def _read_voice(path: Path) -> NDArray[Any]:
    pack = _load(path)
    if not isinstance(pack, torch.Tensor):
        raise KokoroNpuError(f"{path}: expected one tensor, found {type(pack).__name__}")
    array: NDArray[Any] = pack.detach().to(torch.float32).numpy()
    return array


def _load(path: Path) -> Any:
    try:
        # weights_only refuses anything but tensors and plain containers: a checkpoint is data, not code.
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise KokoroNpuError(f"{path} is not a whole torch file of plain tensors ({reason[0]})") from None


def _flatten(checkpoint: Any, path: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    """Nested state dicts as one, without DataParallel's ``module.``."""
    if isinstance(checkpoint, torch.Tensor):
        return {".".join(part for part in prefix.split(".")[1:] if part != "module"): checkpoint}
    if not isinstance(checkpoint, Mapping):
        raise KokoroNpuError(f"{path}: {prefix[1:] or 'the file'} is {type(checkpoint).__name__}, not a tensor")
    flat: dict[str, torch.Tensor] = {}
    for key, value in checkpoint.items():
        flat |= _flatten(value, path, f"{prefix}.{key}")
    return flat
