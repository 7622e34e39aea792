"""Where the HTP emulation leaves ONNX Runtime: a graph cut at every tensor, and the first op that departs named.

A graph is compiled as a whole, so that an op can be right alone and wrong among its neighbours. Each cut is the graph
from its inputs up to one tensor, with that tensor as its output, so an error shows at the op that makes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from tqdm import tqdm

from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.emulation.graph import Graph, Tensor, values
from kokoro_npu.emulation.htp import Job, agreement_db, emulate
from kokoro_npu.errors import KokoroNpuError

_BATCH = 8
"""Cuts in one child process."""


@dataclass(frozen=True)
class Cut:
    """What came of one cut.

    Attributes:
        node: the op that writes the tensor.
        op: its type.
        tensor: the float tensor at which the graph was cut.
        snr_db: the emulation against ONNX Runtime CPU there, 200 for equal tensors; None when it did not run.
        error: why it did not.
    """

    node: str
    op: str
    tensor: str
    snr_db: float | None
    error: str

    def departs(self, floor_db: float) -> bool:
        """Whether the emulation is below ``floor_db`` here, or failed."""
        return self.snr_db is None or self.snr_db < floor_db


def compare(
    model: onnx.ModelProto,
    feeds: Mapping[str, Tensor],
    target: Target,
    settings: CompileSettings,
    scope: str,
) -> Iterator[Cut]:
    """Cut a graph after each op of a scope and compare, in the order of the graph.

    The scope's own inputs take the values of ONNX Runtime, so what departs departs within it. A cut costs the work of
    all ops before it in the scope: about a second in one block of the decoder.

    Args:
        model: static shapes, weights inside; float (run in half precision) or with Q/DQ pairs.
        feeds: inputs of the whole model.
        target: the chip.
        settings: finalize level and options, those that ship.
        scope: prefix of node names, such as ``/decode.0/``; empty for the whole graph.

    Raises:
        KokoroNpuError: no op has this prefix.
    """
    graph = Graph(model)
    nodes = [node for node in graph.operators if node.name.startswith(scope) and graph.sources(node)]
    if not nodes:
        heads = sorted({"/" + node.name.strip("/").split("/")[0] for node in graph.operators})
        raise KokoroNpuError(f"{scope!r} is the prefix of no op; names begin with {', '.join(heads[:20])}")
    inside = {name for node in nodes for name in node.output}
    entries = list(dict.fromkeys(name for node in nodes for name in graph.sources(node) if name not in inside))
    cuts = [(node, name, graph.quantized(name)[0]) for node in nodes for name in node.output if name]
    truth = values(model, feeds, [*entries, *(seen for _, _, seen in cuts)])
    with tqdm(total=len(cuts), desc=f"cut {scope or model.graph.name}", unit="cut") as bar:
        for start in range(0, len(cuts), _BATCH):
            some = cuts[start : start + _BATCH]
            parts = [graph.part(entries, [seen]) for _, _, seen in some]
            jobs = [Job(part, {info.name: truth[info.name] for info in part.graph.input}) for part in parts]
            for (node, name, seen), answer in zip(some, emulate(jobs, target, settings), strict=True):
                bar.update()
                level = None if answer.error else agreement_db({seen: truth[seen]}, answer.outputs)
                yield Cut(node.name or name, node.op_type, name, level, answer.error)
