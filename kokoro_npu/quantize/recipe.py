"""What to quantize and how, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationMethod, QuantType

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.quantize.overrides import Line, Settings, load_lines, resolve

FP16 = "fp16"

_ACTIVATION_TYPES = {8: QuantType.QUInt8, 16: QuantType.QUInt16}
_WEIGHT_TYPES = {8: QuantType.QInt8, 16: QuantType.QInt16}
_METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "percentile": CalibrationMethod.Percentile,
    "entropy": CalibrationMethod.Entropy,
}


NORM = "InstanceNormalization"
"""The op that a w8a16 graph computes in half precision: its node says so, and its scale passes through no integer."""


@dataclass(frozen=True)
class Calibration:
    """How activation ranges are measured.

    Attributes:
        frames: buckets to calibrate on; an utterance takes the smallest that holds it, and is left out if none does. A
            long one is needed, because the peaks of a normalized channel grow with the utterance.
        method: minmax, percentile or entropy.
        short_windows: lengths in frames of cuts from the first utterances. The masked norm's intermediate values
            grow with the root of padded over real length, so that a range measured on full buckets alone clips a
            short utterance.
        headroom: factor on every range. 16 bits have more resolution than the 8-bit weights deserve, and an
            unseen utterance that clips costs ten decibels.
        norm_headroom: further factor on what the instance norms read, for the same reason as ``short_windows``: the
            root of the padding that they saw is less than that of a second of speech in the longest bucket.
    """

    frames: tuple[int, ...]
    method: str
    short_windows: tuple[int, ...]
    headroom: float
    norm_headroom: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """One precision of the decoder.

    Attributes:
        precision: name in reports: w8a16, w8a8, mixed, fp16.
        activation_bits: 8 or 16.
        weight_bits: 8 or 16.
        per_channel: one scale per output channel of a convolution's weights.
        float_scopes: prefixes of node names that stay floating.
        calibration: how ranges are measured.
        lines: what groups of nodes do otherwise, from a recipe file.
    """

    precision: str
    activation_bits: int
    weight_bits: int
    per_channel: bool
    float_scopes: tuple[str, ...]
    calibration: Calibration
    lines: tuple[Line, ...] = ()

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
        values["float_scopes"] = tuple(values["float_scopes"])
        lines = load_lines(str(values.pop("recipe")))
        return cls(**values, calibration=Calibration(**calibration), lines=lines)

    @property
    def is_float(self) -> bool:
        """Whether the decoder stays floating (fp16), so that nothing is calibrated."""
        return self.precision == FP16

    @property
    def activation_type(self) -> QuantType:
        """ONNX Runtime's type of activations."""
        return activation_type(self.activation_bits)

    @property
    def weight_type(self) -> QuantType:
        """ONNX Runtime's type of weights."""
        return weight_type(self.weight_bits)

    @property
    def method(self) -> CalibrationMethod:
        """ONNX Runtime's calibration method."""
        return _METHODS[self.calibration.method]

    def settings(self, model: onnx.ModelProto) -> dict[str, Settings]:
        """The settings of every node of ``model`` by its name: the preset's, then the lines in order.

        Raises:
            KokoroNpuError: a scope or a line matches no node, which would quantize otherwise than meant.
        """
        names = [node.name for node in model.graph.node]
        for scope in self.float_scopes:
            if not any(name.startswith(scope) for name in names):
                raise KokoroNpuError(f"quantize.float_scopes: {scope!r} is the prefix of no node of {model.graph.name}")
        default = Settings(self.weight_bits, self.activation_bits)
        scopes = [Line(f"{escape(scope)}*", "quantize.float_scopes", float=True) for scope in self.float_scopes]
        if any(node.op_type == NORM for node in model.graph.node):
            scopes.append(
                Line(f"*/{NORM}", "its shift stays float in any case, and HTP then takes all of it so", float=True)
            )
        return resolve(model, default, (*scopes, *self.lines))


def activation_type(bits: int) -> QuantType:
    """ONNX Runtime's type of activations: unsigned, asymmetric."""
    return _ACTIVATION_TYPES[bits]


def weight_type(bits: int) -> QuantType:
    """ONNX Runtime's type of weights: signed, symmetric, as HTP wants them."""
    return _WEIGHT_TYPES[bits]
