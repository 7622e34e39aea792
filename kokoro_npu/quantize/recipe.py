"""What to quantize and how, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from kokoro_npu.quantize.overrides import NodePrecision, Override, load_overrides, resolve

NORM = "InstanceNormalization"
"""The op that HTP computes in half precision in any case, since its shift passes through no integer."""

HEAD = "/generator/head/"
"""How the names of the head's nodes begin."""


@dataclass(frozen=True)
class Calibration:
    """How activation ranges are measured: by their extremes.

    Attributes:
        frames: buckets to calibrate on; an utterance takes the smallest that holds it, and is left out if none does. A
            long one is needed, because the peaks of a normalized channel grow with the utterance.
        short_windows: lengths in frames of cuts from the first utterances. The masked norm's intermediate values
            grow with the root of padded over real length, so that a range measured on full buckets alone clips a
            short utterance.
        headroom: factor on every range. 16 bits have more resolution than the 8-bit weights deserve, and an
            unseen utterance that clips costs ten decibels.
        norm_headroom: further factor on what the instance norms read, for the same reason as ``short_windows``: the
            root of the padding that they saw is less than that of a second of speech in the longest bucket.
    """

    frames: tuple[int, ...]
    short_windows: tuple[int, ...] = ()
    headroom: float = 1.0
    norm_headroom: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """One precision of the decoder.

    Attributes:
        precision: name in reports, that of its file in conf/quantize.
        activation_bits: 8 or 16.
        weight_bits: 8 or 16.
        per_channel: one scale per output channel of a convolution's weights.
        calibration: how ranges are measured.
        float: the whole decoder stays floating, in half precision, and nothing is calibrated.
        overrides: what groups of nodes do otherwise, from a recipe file.
    """

    precision: str
    activation_bits: int
    weight_bits: int
    per_channel: bool
    calibration: Calibration
    float: bool = False
    overrides: tuple[Override, ...] = ()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Recipe":
        """Build from the plain values of the config group ``quantize``; its gates are not part of the recipe.

        Raises:
            KokoroNpuError: the recipe file that it names cannot be used.
        """
        values = {name: value for name, value in options.items() if name != "gates"}
        calibration = dict(values.pop("calibration"))
        for name in ("frames", "short_windows"):
            calibration[name] = tuple(calibration[name])
        overrides = load_overrides(str(values.pop("recipe")))
        return cls(**values, calibration=Calibration(**calibration), overrides=overrides)

    def node_precisions(self, model: onnx.ModelProto) -> dict[str, NodePrecision]:
        """The precision of every node of ``model`` by its name: the preset's, then the overrides in order.

        Raises:
            KokoroNpuError: an override matches no node, which would quantize otherwise than meant.
        """
        default = NodePrecision(self.weight_bits, self.activation_bits)
        floating = NodePrecision(self.weight_bits, self.activation_bits, float=True)
        nodes = {node.name: floating if node.op_type == NORM else default for node in model.graph.node}
        return resolve(model, nodes, self.overrides)
