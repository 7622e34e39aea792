"""16-bit weights where HTP computes only 8-bit ones rightly: one convolution as the sum of two.

A 16-bit weight on the grid of step s / 254 is an 8-bit one of step s and an 8-bit remainder of step s / 254, together
as many bytes. What stands for it is measured in the emulation only, on single convolutions of 64 channels (kernels 3
and 11, dilations 1, 3 and 5): 80 to 84 dB against ONNX Runtime on the same graph, where a 16-bit weight left 13 to 41
(docs/quantization.md). No device has run it.
"""

from collections.abc import Collection

import numpy as np
import onnx

from kokoro_npu.quantize.overrides import WIDEST_SPAN_AT_16_BITS, Settings, column_spans, weighted_nodes
from kokoro_npu.quantize.rounded import RoundedWeight, channel_axis, round_to_nearest

LOW = "_low"
"""End of the names of the convolution of remainders, of its weight and of its output."""
SUM = "_sum"
_HIGH = "_high"
_LOW_SHARE = 0.125
"""The remainders' output against the whole's, at most: they are 1 / 127 of the largest weight of their channel, and
those of 28 dB in all; the rest is for channels that are worse than others."""


def halved_nodes(model: onnx.ModelProto, settings: dict[str, Settings]) -> list[str]:
    """The nodes that ``settings`` give 16-bit weights which HTP computes wrongly as such."""
    spans = column_spans(model)
    return [
        node.name
        for node in weighted_nodes(model)
        if settings[node.name].weights == 16
        and not settings[node.name].float
        and spans.get(node.name, 1) > WIDEST_SPAN_AT_16_BITS
    ]


def halve(
    model: onnx.ModelProto, names: Collection[str]
) -> tuple[dict[str, RoundedWeight], dict[str, tuple[str, float]]]:
    """Replace convolutions by sums of two.

    Args:
        model: float, weights inside; it is changed. A node keeps its name for the upper half, the others' names end in
            :data:`LOW` and :data:`SUM`.
        names: of the nodes.

    Returns:
        The 8-bit integers of both halves by the name of the initializer, and the range of each new activation as that
        of another tensor times a factor.
    """
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    rounded: dict[str, RoundedWeight] = {}
    ranges: dict[str, tuple[str, float]] = {}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes.append(node)
        if node.name not in names:
            continue
        weight, axis = node.input[1], channel_axis(node.op_type)
        if weight not in rounded:
            exact = onnx.numpy_helper.to_array(initializers[weight])
            upper = round_to_nearest(exact, axis, 8)
            rest = exact - upper.values(axis)
            scales = (upper.scales / (2 * np.iinfo(np.int8).max)).astype(np.float32)
            rounded[weight], rounded[weight + LOW] = upper, round_to_nearest(rest, axis, 8, scales)
            model.graph.initializer.append(onnx.numpy_helper.from_array(rest, weight + LOW))
        output = node.output[0]
        low = onnx.NodeProto()
        low.CopyFrom(node)
        low.name, low.input[1], low.output[0] = node.name + LOW, weight + LOW, output + LOW
        del low.input[2:]
        node.output[0] = output + _HIGH
        nodes.append(low)
        nodes.append(onnx.helper.make_node("Add", [output + _HIGH, output + LOW], [output], name=node.name + SUM))
        # The upper half may exceed the whole by as much as the remainders take back.
        ranges |= {output + _HIGH: (output, 1 + _LOW_SHARE), output + LOW: (output, _LOW_SHARE)}
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return rounded, ranges
