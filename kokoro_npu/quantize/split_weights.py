"""16-bit weights where HTP computes only 8-bit ones rightly: one convolution as the sum of two.

A 16-bit weight on the grid of step s / 254 is an 8-bit one of step s and an 8-bit remainder of step s / 254, together
as many bytes. What stands for it is measured in the emulation only, on single convolutions of 64 channels (kernels 3
and 11, dilations 1, 3 and 5): 80 to 84 dB against ONNX Runtime on the same graph, where a 16-bit weight left 13 to 41
(docs/quantization.md). No device has run it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from kokoro_npu.quantize.encodings import Ranges
from kokoro_npu.quantize.overrides import NodePrecision, weighted_nodes
from kokoro_npu.quantize.weight_grid import RoundedWeight, channel_axes, round_to_nearest

_WIDEST_SPAN_AT_16_BITS = 7
"""Columns that a convolution with 16-bit weights may span on HTP.

Measured in the emulation (QAIRT 2.51, SM8650, finalize level 2) against ONNX Runtime on the same graph, 64 to 256
channels: 68 to 72 dB for kernels of 1 to 7 columns, for strided and for transposed ones; 13 to 41 dB for 9 and 11
columns and for every dilated one. 8-bit weights: 75 dB for all. Only those shapes were tried, and no device.
"""

_LOW, _HIGH, _SUM = "_low", "_high", "_sum"
"""Ends of names: of the convolution of remainders, its weight and its output; of the other's output; of the sum."""
_LOW_SHARE = 0.125
"""The remainders' output against the whole's, at most: they are 1 / 127 of the largest weight of their channel, and
those of 28 dB in all; the rest is for channels that are worse than others."""


@dataclass(frozen=True)
class SplitWeights:
    """What :func:`split_weights` has put in place of convolutions.

    Attributes:
        precisions: of every node of the model, the new ones included.
        weights: name of the initializer to its 8-bit integers, of both parts.
        ranges: of every activation, the new ones included.
    """

    precisions: dict[str, NodePrecision]
    weights: dict[str, RoundedWeight]
    ranges: Ranges


def split_weights(model: onnx.ModelProto, precisions: Mapping[str, NodePrecision], ranges: Ranges) -> SplitWeights:
    """Replace the convolutions whose 16-bit weights HTP computes wrongly by sums of two.

    Args:
        model: float, weights inside; it is changed. A node keeps its name for the upper part; the names of the other
            and of the sum begin with it.
        precisions: of every node.
        ranges: of the activations that were measured.
    """
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    split = SplitWeights(dict(precisions), {}, dict(ranges))
    names = _to_split(model, precisions)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes.append(node)
        if node.name not in names:
            continue
        weight, output = node.input[1], node.output[0]
        if weight not in split.weights:
            exact = onnx.numpy_helper.to_array(initializers[weight])
            axes = channel_axes(node, 1, exact.ndim)
            upper = round_to_nearest(exact, axes, 8)
            rest = exact - upper.values
            scales = (upper.scales / (2 * np.iinfo(np.int8).max)).astype(np.float32)
            lower = round_to_nearest(rest, axes, 8, scales)
            split.weights.update({weight: upper, weight + _LOW: lower})
            initializers[weight].CopyFrom(onnx.numpy_helper.from_array(upper.values, weight))
            model.graph.initializer.append(onnx.numpy_helper.from_array(lower.values, weight + _LOW))
        low = onnx.NodeProto()
        low.CopyFrom(node)
        low.name, low.input[1], low.output[0] = node.name + _LOW, weight + _LOW, output + _LOW
        del low.input[2:]
        node.output[0] = output + _HIGH
        nodes.append(low)
        nodes.append(onnx.helper.make_node("Add", [output + _HIGH, output + _LOW], [output], name=node.name + _SUM))
        at_8 = replace(precisions[node.name], weights=8)
        split.precisions.update(dict.fromkeys((node.name, node.name + _LOW, node.name + _SUM), at_8))
        # The upper part may exceed the whole by as much as the remainders take back.
        for name, share in ((output + _HIGH, 1 + _LOW_SHARE), (output + _LOW, _LOW_SHARE)):
            if output in ranges:
                split.ranges[name] = (share * ranges[output][0], share * ranges[output][1])
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return split


def _to_split(model: onnx.ModelProto, precisions: Mapping[str, NodePrecision]) -> set[str]:
    """The nodes with 16-bit weights that reach over too many columns, or are dilated, which is wrong at any span."""
    shapes = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    found = set()
    for node in weighted_nodes(model):
        attributes = {a.name: list(a.ints) for a in node.attribute}
        strided = attributes.get("strides", [1])[-1] > 1
        wide = shapes[node.input[1]][-1] > _WIDEST_SPAN_AT_16_BITS or attributes.get("dilations", [1])[-1] > 1
        precision = precisions[node.name]
        if node.op_type == "Conv" and not strided and wide and precision.weights == 16 and not precision.float:
            found.add(node.name)
    return found
