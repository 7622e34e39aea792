"""Quantization of the decoder: encodings measured once, applied to every bucket by tensor name.

Upstream of this package is ``onnxruntime.quantization``, the living home of ``onnxruntime-tools``.
"""

from kokoro_npu.quantize.calibrate import calibrate, calibration_samples
from kokoro_npu.quantize.model import quantize_decoder
from kokoro_npu.quantize.recipe import Calibration, Recipe
from kokoro_npu.quantize.rounded import RoundedWeight, load_rounded, save_rounded

__all__ = [
    "Calibration",
    "Recipe",
    "RoundedWeight",
    "calibrate",
    "calibration_samples",
    "load_rounded",
    "quantize_decoder",
    "save_rounded",
]
