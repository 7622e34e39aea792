"""The static decoder as an ONNX file, every dimension an integer."""

from pathlib import Path

import onnx
import torch
from kokoro import KModel
from tqdm import tqdm

from kokoro_npu.build import places
from kokoro_npu.geometry import Bucket
from kokoro_npu.model.decoder import StaticDecoder
from kokoro_npu.model.tracing import DEFAULT_OPSET, export_module, finish


def export_decoder(
    model: KModel, bucket: Bucket, opset: int = DEFAULT_OPSET, rows: int | None = None
) -> onnx.ModelProto:
    """Export the static decoder of one bucket and simplify it; weights stay inside the returned model.

    Args:
        model: upstream's model, weight norm removed.
        bucket: the static size.
        opset: ONNX opset, 17 or newer.
        rows: of time folding; see :class:`StaticDecoder`.
    """
    module = StaticDecoder(model.decoder, bucket, rows)
    inputs = {name: torch.zeros(shape) for name, shape in bucket.input_shapes.items()}
    name = places.decoder(Path(), bucket.frames).stem
    with tqdm(total=2, desc=f"export {name}", unit="step") as progress:
        progress.set_postfix_str("trace")  # runs the decoder once
        exported = export_module(module, inputs, list(bucket.output_shapes), opset)
        progress.update()
        progress.set_postfix_str("simplify")
        finished = finish(exported, name)
        _name_by_scope(finished)
        progress.update()
    return finished


def _name_by_scope(model: onnx.ModelProto) -> None:
    """Put what the simplifier has made of several ops into the module that reads it.

    It numbers such ops without regard to modules, and recipes go by names: a piece of the head would not float with it.
    """
    readers = {name: node for node in reversed(model.graph.node) for name in node.input}
    # Backwards, so that a reader has its final name.
    for node in reversed(model.graph.node):
        if not node.name.startswith("/") and node.output[0] in readers:
            scope = readers[node.output[0]].name.rpartition("/")[0]
            node.name = f"{scope.removesuffix('/merged')}/merged/{node.name}"
