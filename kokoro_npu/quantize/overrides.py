"""Recipe files: how each group of nodes is quantized, and why, in lines that people can read and change.

A recipe file is YAML with a list ``lines``. A line names nodes by a shell pattern (``*``, ``?``, ``[..]``) over their
ONNX names, says what to do with them, and why::

    lines:
    - nodes: /generator/resblocks.[345]/convs*
      weights: 16
      why: 2 MB that carry a third of the noise

Lines apply in order and a later one wins, setting by setting, so that a line at the end pins what others say.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onnx
import yaml

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic

WIDEST_SPAN_AT_16_BITS = 7
"""Columns that a convolution with 16-bit weights may span on HTP.

Measured in the emulation (QAIRT 2.51, SM8650, finalize level 2) against ONNX Runtime on the same graph, 64 to 256
channels: 68 to 72 dB for kernels of 1 to 7 columns, for strided and for transposed ones; 13 to 41 dB for 9 and 11
columns and for every dilated one. 8-bit weights: 75 dB for all. Only those shapes were tried, and no device.
Such convolutions get their 16 bits in two halves (:mod:`kokoro_npu.quantize.split_weights`).
"""

_CHOICES: dict[str, tuple[Any, ...]] = {
    "weights": (8, 16),
    "activations": (8, 16),
    "float": (True, False),
}


@dataclass(frozen=True)
class Settings:
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
class Line:
    """One line of a recipe: what a group of nodes does otherwise than the preset.

    Attributes:
        nodes: shell pattern over node names.
        why: the reason, for the reader.
        weights, activations, float: as in :class:`Settings`; None leaves what earlier lines say.
    """

    nodes: str
    why: str
    weights: int | None = None
    activations: int | None = None
    float: bool | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the line sets."""
        return {name: value for name in _CHOICES if (value := getattr(self, name)) is not None}


def load_lines(path: Path | str) -> tuple[Line, ...]:
    """Read and check a recipe file.

    Raises:
        KokoroNpuError: the file cannot be read, or a line has an unknown key, an impossible value, no pattern, no
            reason, or sets nothing.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KokoroNpuError(f"recipe {path}: {error.strerror}; see quantize.recipe") from error
    except yaml.YAMLError as error:
        raise KokoroNpuError(f"recipe {path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping) or set(content) != {"lines"} or not isinstance(content["lines"], list):
        raise KokoroNpuError(f"recipe {path}: it must hold `lines:` and a list, which may be empty ([])")
    return tuple(_line(entry, f"recipe {path}, line {n}") for n, entry in enumerate(content["lines"], start=1))


def _line(entry: Any, where: str) -> Line:
    known = [field.name for field in fields(Line)]
    if not isinstance(entry, Mapping):
        raise KokoroNpuError(f"{where}: {entry!r} is no mapping; a line has {', '.join(known)}")
    for key, value in entry.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            raise KokoroNpuError(
                f"{where}: {key} is no setting; "
                + (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")
            )
        # Types too: to Python, True equals 1.
        if key in _CHOICES and not any(value == c and type(value) is type(c) for c in _CHOICES[key]):
            words = ", ".join(str(choice).lower() for choice in _CHOICES[key])
            raise KokoroNpuError(f"{where}: {key} is {value!r}; it must be one of {words}")
    for key in ("nodes", "why"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise KokoroNpuError(f"{where}: {key} is missing; it must be a text")
    line = Line(**entry)
    if not line.settings:
        raise KokoroNpuError(f"{where} ({line.nodes}) sets nothing; known: {', '.join(_CHOICES)}")
    return line


def save_lines(path: Path | str, lines: Iterable[Line], comment: str) -> None:
    """Write a recipe file: ``comment`` on top, each line's pattern first and its reason last."""
    entries = [{"nodes": line.nodes, **line.settings, "why": line.why} for line in lines]
    text = yaml.safe_dump({"lines": entries}, sort_keys=False, width=110, allow_unicode=True)
    head = "".join(f"# {row}\n" for row in comment.strip().splitlines())
    with atomic(path) as tmp:
        tmp.write_text(head + text, encoding="utf-8")


def resolve(model: onnx.ModelProto, default: Settings, lines: Iterable[Line]) -> dict[str, Settings]:
    """The settings of every node of a model by its name.

    Args:
        model: the float model.
        default: of nodes that no line names.
        lines: in order; a later one wins.

    Raises:
        KokoroNpuError: a pattern that matches no node, which would quantize otherwise than meant, or a setting
            of weights where no node has any.
    """
    settings = {node.name: default for node in model.graph.node}
    weighted = {node.name for node in weighted_nodes(model)}
    for line in lines:
        found = [name for name in settings if fnmatchcase(name, line.nodes)]
        if not found:
            near = difflib.get_close_matches(line.nodes, settings, n=1, cutoff=0.5)
            hint = f"; the nearest name is {near[0]}" if near else ""
            raise KokoroNpuError(f"recipe: {line.nodes!r} matches no node of {model.graph.name}{hint}")
        if "weights" in line.settings and not weighted & set(found):
            raise KokoroNpuError(f"recipe: {line.nodes!r} sets weights, but matches no convolution")
        for name in found:
            settings[name] = replace(settings[name], **line.settings)
    return settings


def weighted_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The convolutions whose weight is an initializer."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [n for n in model.graph.node if n.op_type in ("Conv", "ConvTranspose") and n.input[1] in initializers]


def column_spans(model: onnx.ModelProto) -> dict[str, int]:
    """How many input columns one output of each unstrided convolution reaches over, by node name."""
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    spans = {}
    for node in weighted_nodes(model):
        attributes = {a.name: list(a.ints) for a in node.attribute}
        if node.op_type == "Conv" and attributes.get("strides", [1])[-1] == 1:
            dilation = attributes.get("dilations", [1])[-1]
            spans[node.name] = dilation * (shapes[node.input[1]][-1] - 1) + 1
            if dilation > 1:  # wrong at any span
                spans[node.name] = max(spans[node.name], WIDEST_SPAN_AT_16_BITS + 1)
    return spans
