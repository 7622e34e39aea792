"""A decoder cut by depth into a chain of smaller graphs, for a compiler whose memory grows with the graph.

The cuts lie at the seams of the generator's last rate, where most of a long bucket's memory is: before it, and around
its residual blocks. What crosses a cut is quantized (an integer tensor leaves one graph and enters the next), so that
the chain computes what the whole does. All graphs lie in one context binary, and one model chains them.
"""

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx
from onnx import helper

from kokoro_npu.errors import KokoroNpuError

LAST_RATE = (
    ("/generator/noise_convs.1/", "/generator/noise_res.1/", "/generator/ups.1/"),
    ("/generator/resblocks.3/",),
    ("/generator/resblocks.4/",),
    ("/generator/resblocks.5/", "/generator/head/"),
)
"""Scopes of the graphs after the first, which holds all that comes before."""
REPEATED = ("/affines.",)
"""Scopes that each graph computes for itself from what crosses the cut: their outputs are floating."""


def cut(
    model: onnx.ModelProto, scopes: Sequence[Sequence[str]], repeated: Sequence[str] = REPEATED
) -> list[onnx.ModelProto]:
    """A decoder as ``len(scopes) + 1`` models, each of which takes inputs of the decoder and outputs of former ones.

    A node belongs to the graph of its scope, or else to the last one that it needs anything from.

    Args:
        model: float or QDQ decoder; external data stay where they are.
        scopes: prefixes of node names for each graph after the first.
        repeated: prefixes of nodes that are copied into every graph that needs them.

    Raises:
        KokoroNpuError: a scope is the prefix of no node, or a node is needed by an earlier graph.
    """
    graph = model.graph
    producer = {name: node for node in graph.node for name in node.output}
    stored = {tensor.name for tensor in graph.initializer}
    piece = _assign(graph, scopes)
    members: list[dict[str, onnx.NodeProto]] = [{} for _ in range(len(scopes) + 1)]

    def add(node: onnx.NodeProto, index: int) -> None:
        """Put a node into a graph, with whatever of its sources are copied rather than handed over."""
        if node.output[0] in members[index]:
            return
        for name in node.input:
            source = producer.get(name)
            if source is not None and _copied(source, repeated):
                add(source, index)
        members[index][node.output[0]] = node

    for node in graph.node:
        if not _copied(node, repeated):
            add(node, piece[node.output[0]])
    order = {name: position for position, node in enumerate(graph.node) for name in node.output}
    inferred = onnx.shape_inference.infer_shapes(model).graph
    infos = {info.name: info for info in (*inferred.input, *inferred.value_info, *inferred.output)}
    finals = {info.name for info in graph.output}
    wanted = [
        {name for node in nodes.values() for name in node.input if name and name not in stored} for nodes in members
    ]
    pieces = []
    for index, nodes in enumerate(members):
        own = {name for node in nodes.values() for name in node.output}
        later = set().union(*wanted[index + 1 :])
        elsewhere = {name for other in members[index + 1 :] for node in other.values() for name in node.output}
        inputs = sorted(wanted[index] - own, key=lambda name: _position(name, order, graph))
        outputs = sorted((own & finals) | ((own & later) - elsewhere), key=lambda name: order.get(name, 0))
        used = {name for node in nodes.values() for name in node.input}
        pieces.append(
            helper.make_model(
                helper.make_graph(
                    sorted(nodes.values(), key=lambda node: order[node.output[0]]),
                    f"{graph.name}_{index}",
                    [infos[name] for name in inputs],
                    [infos[name] for name in outputs],
                    [tensor for tensor in graph.initializer if tensor.name in used],
                ),
                opset_imports=model.opset_import,
                ir_version=model.ir_version,
                producer_name=model.producer_name,
            )
        )
    return pieces


def _position(name: str, order: Mapping[str, int], graph: onnx.GraphProto) -> int:
    """Inputs of the decoder first, in its order."""
    inputs = [info.name for info in graph.input]
    return order[name] + len(inputs) if name in order else inputs.index(name)


def _copied(node: onnx.NodeProto, repeated: Sequence[str]) -> bool:
    """Dequantizing belongs to the reader, so that the integers cross; constants and ``repeated`` nodes as well."""
    return node.op_type in ("DequantizeLinear", "Constant") or node.name.startswith(tuple(repeated))


def _assign(graph: onnx.GraphProto, scopes: Sequence[Sequence[str]]) -> dict[str, int]:
    prefixes = [(prefix, index) for index, group in enumerate(scopes, start=1) for prefix in group]
    for prefix, _ in prefixes:
        if not any(node.name.startswith(prefix) for node in graph.node):
            raise KokoroNpuError(f"{graph.name}: no node below {prefix}: the decoder cannot be cut there")
    piece: dict[str, int] = {}
    for node in graph.node:
        needed = max((piece[name] for name in node.input if name in piece), default=0)
        own = next((index for prefix, index in prefixes if node.name.startswith(prefix)), needed)
        # A quantizer's node carries the name of its tensor, whose producer it goes with.
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            own = needed
        if own < needed:
            raise KokoroNpuError(f"{graph.name}: node {node.name} needs graph {needed}, and belongs to graph {own}")
        piece.update(dict.fromkeys(node.output, own))
    return piece


class Part(NamedTuple):
    """One model that is compiled: a bucket's decoder, or one graph of its chain."""

    frames: int
    model: Path

    def context(self, directory: Path) -> Path:
        """Where the compiler is to leave its context model."""
        return directory / f"{self.model.stem}_ctx.onnx"


def lay_out(models: Mapping[int, Path], to_cut: Collection[int], directory: Path) -> list[Part]:
    """Put the models, or their pieces, and the weights that they point to into one directory.

    Args:
        models: frames to the decoder.
        to_cut: the buckets that are cut.
        directory: created.
    """
    directory.mkdir()
    parts = []
    for frames, path in models.items():
        model = onnx.load(str(path), load_external_data=False)
        for name in {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location" and not (directory / entry.value).exists()
        }:
            _link(path.parent / name, directory / name)
        if frames not in to_cut:
            _link(path, directory / path.name)
            parts.append(Part(frames, directory / path.name))
            continue
        for index, piece in enumerate(cut(model, LAST_RATE)):
            target = directory / f"{path.stem}_{index}.onnx"
            onnx.save(piece, str(target))
            parts.append(Part(frames, target))
    return parts


def _link(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def join(parts: Sequence[Part], decoder: Path, directory: Path) -> Path:
    """The one context model of a bucket, ``<decoder>_ctx.onnx``, from those of its parts in ``directory``."""
    target = directory / f"{decoder.stem}_ctx.onnx"
    if len(parts) > 1:
        chain([part.context(directory) for part in parts], onnx.load(str(decoder), load_external_data=False), target)
        for part in parts:
            part.context(directory).unlink()
    return target


def chain(contexts: Sequence[Path], decoder: onnx.ModelProto, path: Path) -> None:
    """Write one model of the pieces' EPContext nodes, with the decoder's inputs and outputs.

    Args:
        contexts: the pieces' context models in their order, all pointing into one binary beside ``path``.
        decoder: the model that was cut.
        path: where to write.
    """
    models = [onnx.load(str(context), load_external_data=False) for context in contexts]
    nodes, handed_over = [], []
    for index, model in enumerate(models):
        (node,) = model.graph.node
        for attribute in node.attribute:
            # The first node loads the binary, and the others find their graphs in it.
            if attribute.name == "main_context":
                attribute.i = int(index == 0)
        nodes.append(node)
        # An EPContext node's types cannot be inferred.
        handed_over += [info for info in model.graph.output if index + 1 < len(models)]
    graph = helper.make_graph(
        nodes, decoder.graph.name, decoder.graph.input, decoder.graph.output, value_info=handed_over
    )
    imports, version = models[0].opset_import, models[0].ir_version
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=version), str(path))
