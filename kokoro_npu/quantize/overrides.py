"""Recipe files: what groups of nodes do otherwise than their preset, and why, in a form that people read and change.

A recipe file is YAML with a list ``overrides``. An override names nodes by a shell pattern (``*``, ``?``, ``[..]``)
over their ONNX names, says what to do with them, and why::

    overrides:
    - nodes: /generator/resblocks.[345]/convs*
      weights: 16
      why: 2 MB that carry a third of the noise

Overrides apply in order and a later one wins, setting by setting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onnx
import yaml

from kokoro_npu.errors import KokoroNpuError, did_you_mean
from kokoro_npu.files import atomic

_CHOICES: dict[str, tuple[Any, ...]] = {
    "weights": (8, 16),
    "activations": (8, 16),
    "float": (True, False),
}


@dataclass(frozen=True)
class NodePrecision:
    """How one node is quantized.

    Attributes:
        weights: bits of the weight of a convolution, symmetric.
        activations: bits of the node's output.
        float: the node stays out of the quantization altogether, computed in half precision on HTP.
    """

    weights: int
    activations: int
    float: bool = False


@dataclass(frozen=True)
class Override:
    """What a group of nodes does otherwise than the preset.

    Attributes:
        nodes: shell pattern over node names.
        why: the reason, for the reader.
        weights, activations, float: as in :class:`NodePrecision`; None leaves what earlier overrides say.
    """

    nodes: str
    why: str
    weights: int | None = None
    activations: int | None = None
    float: bool | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What it sets, by the names of :class:`NodePrecision`."""
        return {name: value for name in _CHOICES if (value := getattr(self, name)) is not None}


def load_overrides(path: Path | str) -> tuple[Override, ...]:
    """Read and check a recipe file.

    Raises:
        KokoroNpuError: the file cannot be read, or an override has an unknown key, an impossible value, no pattern, no
            reason, or sets nothing.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KokoroNpuError(f"recipe {path}: {error.strerror}; see quantize.recipe") from error
    except yaml.YAMLError as error:
        raise KokoroNpuError(f"recipe {path} is no YAML: {error}") from error
    if not isinstance(content, Mapping) or set(content) != {"overrides"} or not isinstance(content["overrides"], list):
        raise KokoroNpuError(f"recipe {path}: it must hold `overrides:` and a list, which may be empty ([])")
    return tuple(_override(entry, f"recipe {path}, override {n}") for n, entry in enumerate(content["overrides"], 1))


def _override(entry: Any, where: str) -> Override:
    known = [field.name for field in fields(Override)]
    if not isinstance(entry, Mapping):
        raise KokoroNpuError(f"{where}: {entry!r} is no mapping; an override has {', '.join(known)}")
    for key, value in entry.items():
        if key not in known:
            raise KokoroNpuError(f"{where}: {key} is no setting; {did_you_mean(key, known)}")
        # Types too: to Python, True equals 1.
        if key in _CHOICES and not any(value == c and type(value) is type(c) for c in _CHOICES[key]):
            words = ", ".join(str(choice).lower() for choice in _CHOICES[key])
            raise KokoroNpuError(f"{where}: {key} is {value!r}; it must be one of {words}")
    for key in ("nodes", "why"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise KokoroNpuError(f"{where}: {key} is missing; it must be a text")
    override = Override(**entry)
    if not override.settings:
        raise KokoroNpuError(f"{where} ({override.nodes}) sets nothing; known: {', '.join(_CHOICES)}")
    return override


def save_overrides(path: Path | str, overrides: Iterable[Override], comment: str) -> None:
    """Write a recipe file: ``comment`` on top, each override's pattern first and its reason last."""
    entries = [{"nodes": each.nodes, **each.settings, "why": each.why} for each in overrides]
    text = yaml.safe_dump({"overrides": entries}, sort_keys=False, width=110, allow_unicode=True)
    head = "".join(f"# {row}\n" for row in comment.strip().splitlines())
    with atomic(path) as tmp:
        tmp.write_text(head + text, encoding="utf-8")


def resolve(
    model: onnx.ModelProto, preset: Mapping[str, NodePrecision], overrides: Iterable[Override]
) -> dict[str, NodePrecision]:
    """The precision of every node of a model by its name.

    Args:
        model: the float model.
        preset: of every node, where no override names it.
        overrides: in order; a later one wins.

    Raises:
        KokoroNpuError: a pattern that matches no node, which would quantize otherwise than meant, or a setting
            of weights where no node has any.
    """
    precisions = dict(preset)
    weighted = {node.name for node in weighted_nodes(model)}
    for override in overrides:
        found = [name for name in precisions if fnmatchcase(name, override.nodes)]
        if not found:
            hint = did_you_mean(override.nodes, precisions)
            raise KokoroNpuError(f"recipe: {override.nodes!r} matches no node of {model.graph.name}; {hint}")
        if override.weights is not None and not weighted & set(found):
            raise KokoroNpuError(f"recipe: {override.nodes!r} sets weights, but matches no convolution")
        for name in found:
            precisions[name] = replace(precisions[name], **override.settings)
    return precisions


def weighted_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The convolutions whose weight is an initializer."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [n for n in model.graph.node if n.op_type in ("Conv", "ConvTranspose") and n.input[1] in initializers]
