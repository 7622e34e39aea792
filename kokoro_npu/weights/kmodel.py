"""`kokoro.KModel` built from a config without a network: its tensor table, and the model with its weights.

Importing this module imports kokoro, transformers and spaCy, which takes some seconds.
"""

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from kokoro import KModel
from kokoro.istftnet import AdaIN1d

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.weights import canonical

_POOLER = "bert.pooler."
_REPOSITORY = "hexgrad/Kokoro-82M"


@contextmanager
def _quiet_construction() -> Iterator[None]:
    """Keep upstream's construction from touching the global random state and from warning about its style."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*weight_norm.*is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message="dropout option adds dropout", category=UserWarning)
        yield


def build_kmodel(config: Mapping[str, Any], seed: int = 0) -> KModel:
    """A `KModel` of this config with seeded random weights and weight norm still on; nothing is downloaded.

    Args:
        config: upstream's ``config.json`` as a mapping.
        seed: of the random initialisation. The global random state is left as it was.
    """
    # KModel reads a checkpoint or downloads one; an empty one holds nothing to load.
    empty = io.BytesIO()
    torch.save({}, empty)
    empty.seek(0)
    with _quiet_construction():
        torch.manual_seed(seed)
        return KModel(repo_id=_REPOSITORY, config=dict(config), model=empty, disable_complex=False)


def remove_weight_norm(model: torch.nn.Module) -> None:
    """Fold every old-style weight norm of ``model`` into a plain ``weight``, in place."""
    for module in model.modules():
        if hasattr(module, "weight_g"):
            torch.nn.utils.remove_weight_norm(module)


def unused_tensors(model: KModel) -> set[str]:
    """State-dict names that no output depends on once they hold their identity: AdaIN affines, pooler."""
    affine = {
        f"{name}.norm.{kind}"
        for name, module in model.named_modules()
        if isinstance(module, AdaIN1d)
        for kind in ("weight", "bias")
    }
    pooler = {name for name in model.state_dict() if name.startswith(_POOLER)}
    return affine | pooler


def tensor_table(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors the model uses, weight norm removed: 457 for the released config.

    Derived from `KModel` itself, so that the table cannot drift from the model that will load the tensors.
    """
    with torch.device("meta"):
        model = build_kmodel(config)
        remove_weight_norm(model)
    unused = unused_tensors(model)
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if name not in unused}


def load_kmodel(weights_dir: Path | str) -> KModel:
    """The real model from the canonical files: eval mode, no weight norm, complex STFT, no gradients.

    ALBERT uses eager attention, which traces for ONNX. The unused tensors keep their identity (AdaIN affine)
    or zero (pooler).

    Raises:
        KokoroNpuError: a file is missing or damaged, or the tensors are not those of the config's model.
    """
    model = build_kmodel(canonical.load_config(weights_dir))
    remove_weight_norm(model)
    tensors = {name: torch.from_numpy(value) for name, value in canonical.load_tensors(weights_dir).items()}
    unused = unused_tensors(model)
    own = {name: value for name, value in model.state_dict().items() if name in unused}
    own |= {name: torch.zeros_like(value) for name, value in own.items() if name.startswith(_POOLER)}
    try:
        model.load_state_dict(own | tensors)
    except RuntimeError as error:
        raise KokoroNpuError(f"{weights_dir}: {error}; run the stage fetch-weights again") from None
    model.bert.set_attn_implementation("eager")
    return model.eval().requires_grad_(False)
