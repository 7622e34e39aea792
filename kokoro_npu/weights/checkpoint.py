"""Upstream's files: a ``.pth`` of five state dicts, ``config.json``, and ``.pt`` voice packs.

The checkpoint holds ``bert``, ``bert_encoder``, ``predictor``, ``text_encoder`` and ``decoder``, each name
behind DataParallel's ``module.``, convolutions as weight norm's g and v.
"""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kokoro_npu import geometry
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json
from kokoro_npu.weights.canonical import Tensors
from kokoro_npu.weights.kmodel import tensor_table

_NORM_FORMS = (
    (".weight_g", ".weight_v"),
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
)
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

    Both spellings are known: ``weight_g``, ``weight_v`` and ``parametrizations.weight.original0``,
    ``original1``. Half of a pair is left as it is.
    """
    folded = dict(tensors)
    for name in tensors:
        for magnitude, direction in _NORM_FORMS:
            base = name.removesuffix(magnitude)
            if base != name and base + direction in tensors:
                g, v = folded.pop(name).float(), folded.pop(base + direction).float()
                norm = torch.linalg.vector_norm(v, dim=tuple(range(1, v.ndim)), keepdim=True)
                folded[f"{base}.weight"] = v * (g / norm)
    return folded


def read_voice(path: Path) -> NDArray[Any]:
    """A ``.pt`` voice pack as an array, [510, 1, 256] in upstream's files.

    Raises:
        KokoroNpuError: the file holds no tensor.
    """
    pack = _load(path)
    if not isinstance(pack, torch.Tensor):
        raise KokoroNpuError(f"{path}: expected one tensor, found {type(pack).__name__}")
    array: NDArray[Any] = pack.detach().to(torch.float32).numpy()
    return array


def read_voices(folder: Path) -> tuple[dict[str, NDArray[Any]], list[Path]]:
    """Every voice of a folder, and their files: ``<name>.pt`` packs, and ``.npz`` archives whose keys are the names.

    Raises:
        KokoroNpuError: no voice there, a file that cannot be read, or one name twice.
    """
    files = sorted(path for path in folder.glob("*") if path.suffix in (".pt", ".npz"))
    voices: dict[str, NDArray[Any]] = {}
    for path in files:
        found = {path.stem: read_voice(path)} if path.suffix == ".pt" else _read_npz(path)
        if twice := sorted(found.keys() & voices.keys()):
            raise KokoroNpuError(f"{path}: voice {twice[0]} is already in another file of {folder}")
        voices.update(found)
    if not voices:
        raise KokoroNpuError(f"weights.voices: {folder} is no folder with .pt or .npz voices")
    return voices, files


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise KokoroNpuError(f"{path} is not a .npz of plain arrays ({error})") from None


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
