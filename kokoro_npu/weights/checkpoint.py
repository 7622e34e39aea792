"""Upstream's checkpoint format: a ``.pth`` of five state dicts, and ``.pt`` voice packs.

The release holds ``bert``, ``bert_encoder``, ``predictor``, ``text_encoder`` and ``decoder``, each name
behind DataParallel's ``module.``, convolutions as weight norm's g and v.
"""

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.weights.canonical import Tensors
from kokoro_npu.weights.kmodel import tensor_table, unused_tensor_names

_NORM_FORMS = (
    (".weight_g", ".weight_v"),
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
)
_ID_BUFFERS = re.compile(r"bert\.embeddings\.(position|token_type)_ids")


def read_model(path: Path, config: Mapping[str, Any]) -> Tensors:
    """The used tensors of a checkpoint: ``module.`` stripped, weight norm folded, float32.

    What no output depends on (the ALBERT pooler, id buffers, identity affines of instance norms) is left out.
    Whether the rest is the whole model is `canonical.check_tensors`' business.

    Raises:
        KokoroNpuError: not a checkpoint of tensors, half of a weight norm, or an affine that is not the
            identity.
    """
    flat = fold_weight_norm(_flatten(_load(path), path), str(path))
    table, unused = tensor_table(config), unused_tensor_names(config)
    tensors: Tensors = {}
    for name, value in flat.items():
        if name not in table and _ID_BUFFERS.fullmatch(name):
            continue
        if name in unused:
            _require_identity(name, value, path)
            continue
        tensors[name] = value.detach().to(torch.float32).contiguous().numpy()
    return tensors


def fold_weight_norm(tensors: Mapping[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
    """Replace weight norm's magnitude g and direction v by ``weight`` = v * g / |v|, |v| over all but axis 0.

    Both spellings are known: ``weight_g``, ``weight_v`` and ``parametrizations.weight.original0``,
    ``original1``.

    Raises:
        KokoroNpuError: one of a pair is missing, or g does not fit v; the message names it.
    """
    folded = dict(tensors)
    for name in tensors:
        for magnitude, direction in _NORM_FORMS:
            for own, other in ((magnitude, direction), (direction, magnitude)):
                if name.endswith(own) and name.removesuffix(own) + other not in tensors:
                    raise KokoroNpuError(f"{where}: missing {name.removesuffix(own)}{other}, the other half of {name}")
            if not name.endswith(magnitude):
                continue
            base = name.removesuffix(magnitude)
            g, v = folded.pop(name).float(), folded.pop(base + direction).float()
            if g.shape != (v.shape[0], *(1,) * (v.ndim - 1)):
                raise KokoroNpuError(
                    f"{where}: misshapen {name} is {list(g.shape)}, which does not fit {list(v.shape)}"
                )
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


def read_voices_dir(folder: Path) -> dict[str, NDArray[Any]]:
    """Every voice of a folder: ``<name>.pt`` packs, and the arrays of any ``.npz`` by their keys.

    Raises:
        KokoroNpuError: no such folder, no voice in it, a file that cannot be read, or one name twice.
    """
    if not folder.is_dir():
        raise KokoroNpuError(f"weights.voices: {folder} is not a folder; give one with .pt or .npz voices")
    voices: dict[str, NDArray[Any]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".pt":
            found: dict[str, NDArray[Any]] = {path.stem: read_voice(path)}
        elif path.suffix == ".npz":
            found = read_npz(path)
        else:
            continue
        if twice := sorted(found.keys() & voices.keys()):
            raise KokoroNpuError(f"{path}: voice {twice[0]} is already in another file of {folder}")
        voices.update(found)
    if not voices:
        raise KokoroNpuError(f"weights.voices: {folder} holds no .pt and no .npz voices")
    return voices


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a ``.npz``, pickles refused.

    Raises:
        KokoroNpuError: the file is not a whole ``.npz`` of plain arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:
        raise KokoroNpuError(f"{path} is not a .npz of plain arrays ({error})") from None


def read_config(path: Path) -> Any:
    """Parse upstream's ``config.json``; its content is checked by `kokoro_npu.weights.writing.write`.

    Raises:
        KokoroNpuError: the file is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise KokoroNpuError(f"{path} is not a readable JSON file ({error})") from None


def _load(path: Path) -> Any:
    try:
        # weights_only refuses anything but tensors and plain containers: a checkpoint is data, not code.
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise KokoroNpuError(f"{path} is not a whole torch file of plain tensors ({reason[0]})") from None


def _flatten(checkpoint: Any, path: Path) -> dict[str, torch.Tensor]:
    flat: dict[str, torch.Tensor] = {}

    def walk(prefix: tuple[str, ...], value: Any) -> None:
        if isinstance(value, Mapping):
            for key, child in value.items():
                walk((*prefix, *(part for part in str(key).split(".") if part != "module")), child)
        elif isinstance(value, torch.Tensor):
            flat[".".join(prefix)] = value
        else:
            raise KokoroNpuError(f"{path}: {'.'.join(prefix) or 'the file'} is {type(value).__name__}, not a tensor")

    walk((), checkpoint)
    return flat


def _require_identity(name: str, value: torch.Tensor, path: Path) -> None:
    if ".norm." not in name:
        return
    identity = 1.0 if name.endswith(".weight") else 0.0
    if not torch.all(value == identity):
        raise KokoroNpuError(
            f"{path}: extra {name}: this affine is not the identity, and the pipeline has no place for it"
        )
