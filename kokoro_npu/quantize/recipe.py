"""What to quantize and how, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationMethod, QuantType

from kokoro_npu.errors import KokoroNpuError

FP16 = "fp16"

_ACTIVATION_TYPES = {8: QuantType.QUInt8, 16: QuantType.QUInt16}
_WEIGHT_TYPES = {8: QuantType.QInt8, 16: QuantType.QInt16}
_METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "percentile": CalibrationMethod.Percentile,
    "entropy": CalibrationMethod.Entropy,
}


@dataclass(frozen=True)
class Calibration:
    """How activation ranges are measured.

    Attributes:
        frames: buckets to calibrate on; an utterance takes the smallest that holds it. A long one is needed, because
            the peaks of a normalized channel grow with the utterance.
        method: minmax, percentile or entropy.
        short_windows: lengths in frames of cuts from the first utterances. The masked norm's intermediate values
            grow with the root of padded over real length, so that a range measured on full buckets alone clips a
            short utterance.
        headroom: factor on every range. 16 bits have more resolution than the 8-bit weights deserve, and an
            unseen utterance that clips costs ten decibels.
    """

    frames: tuple[int, ...]
    method: str
    short_windows: tuple[int, ...]
    headroom: float


@dataclass(frozen=True)
class Recipe:
    """One precision of the decoder.

    Attributes:
        precision: name in reports: w8a16, w8a8, fp16.
        activation_bits: 8 or 16.
        weight_bits: 8 or 16.
        per_channel: one scale per output channel of a convolution's weights.
        float_scopes: prefixes of node names that stay floating.
        calibration: how ranges are measured.
    """

    precision: str
    activation_bits: int
    weight_bits: int
    per_channel: bool
    float_scopes: tuple[str, ...]
    calibration: Calibration

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Recipe":
        """Build from the plain values of the config group ``quantize``; its gates are not part of the recipe."""
        values = {name: value for name, value in options.items() if name != "gates"}
        calibration = dict(values.pop("calibration"))
        for name in ("frames", "short_windows"):
            calibration[name] = tuple(calibration[name])
        values["float_scopes"] = tuple(values["float_scopes"])
        return cls(**values, calibration=Calibration(**calibration))

    @property
    def is_float(self) -> bool:
        """Whether the decoder stays floating (fp16), so that nothing is calibrated."""
        return self.precision == FP16

    @property
    def activation_type(self) -> QuantType:
        """ONNX Runtime's type of activations: unsigned, asymmetric."""
        return _ACTIVATION_TYPES[self.activation_bits]

    @property
    def weight_type(self) -> QuantType:
        """ONNX Runtime's type of weights: signed, symmetric, as HTP wants them."""
        return _WEIGHT_TYPES[self.weight_bits]

    @property
    def method(self) -> CalibrationMethod:
        """ONNX Runtime's calibration method."""
        return _METHODS[self.calibration.method]

    def float_nodes(self, model: onnx.ModelProto) -> list[str]:
        """Names of the nodes that stay floating.

        Raises:
            KokoroNpuError: a scope matches no node, which would quantize what was meant to stay float.
        """
        names = [node.name for node in model.graph.node]
        for scope in self.float_scopes:
            if not any(name.startswith(scope) for name in names):
                raise KokoroNpuError(f"quantize.float_scopes: {scope!r} is the prefix of no node of {model.graph.name}")
        return [name for name in names if name.startswith(self.float_scopes)] if self.float_scopes else []
