"""A seeded random KModel that is as small as upstream allows, and its checkpoint in upstream's format.

The decoder's widths (1024, 512, 64) and the style's (128) are hard-coded upstream; what can shrink is ALBERT,
the depth of the text and duration encoders, the generator's residual blocks, and the longest duration.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kokoro import KModel

from kokoro_npu.weights.kmodel import build_kmodel, remove_weight_norm, unused_tensors
from kokoro_npu.weights.wheel import upstream_config

VOCAB = {symbol: index for index, symbol in enumerate("abcdefgh .", start=1)}


def tiny_config() -> dict[str, Any]:
    """A config of the real geometry with the smallest sizes KModel takes."""
    config = upstream_config(VOCAB)
    config |= {"n_layer": 1, "n_token": 16, "max_dur": 4}
    config["plbert"] |= {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
    }
    config["istftnet"] |= {"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]]}
    return config


def tiny_kmodel(seed: int, weight_norm: bool = False) -> KModel:
    """A random model in eval mode without gradients; weight norm is removed unless asked for."""
    model = build_kmodel(tiny_config(), seed)
    if not weight_norm:
        remove_weight_norm(model)
    model.bert.set_attn_implementation("eager")
    return model.eval().requires_grad_(False)


def tiny_voice(seed: int) -> np.ndarray:
    """A random voice pack in upstream's shape, [510, 1, 256] float32."""
    return np.random.default_rng(seed).normal(0, 0.2, (510, 1, 256)).astype(np.float32)


def save_upstream_files(model: KModel, folder: Path, voices: dict[str, np.ndarray]) -> None:
    """Write ``model.pth``, ``config.json`` and ``voices/*.pt`` the way the release holds them.

    ``model`` still has weight norm. The names sit behind ``module.``, the AdaIN affines are absent, the
    pooler and ALBERT's ``position_ids`` are present.
    """
    unused = {name for name in unused_tensors(model) if not name.startswith("bert.pooler")}
    checkpoint: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in model.state_dict().items():
        if name not in unused:
            part, _, rest = name.partition(".")
            checkpoint.setdefault(part, {})[f"module.{rest}"] = value.clone()
    checkpoint["bert"]["module.embeddings.position_ids"] = torch.arange(512)[None]
    (folder / "voices").mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint, folder / "model.pth")
    (folder / "config.json").write_text(json.dumps(tiny_config()), encoding="utf-8")
    for name, pack in voices.items():
        torch.save(torch.from_numpy(pack), folder / "voices" / f"{name}.pt")
