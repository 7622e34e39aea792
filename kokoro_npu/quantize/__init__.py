"""Quantization of the decoder: encodings measured once, applied to every bucket by tensor name.

Upstream of this package is ``onnxruntime.quantization``, the living home of ``onnxruntime-tools``.

``apply``          Encodings and a decoder to a quantized decoder.
``calibrate``      Activation ranges, measured on a few small buckets for all buckets.
``cpu``            Quantization of the CPU models (duration and prosody): integer arithmetic where it pays.
``encodings``      Encodings of activations: their file, and those of tensors that only hold copies of others.
``overrides``      Recipe files: what groups of nodes do otherwise than their preset, and why.
``recipe``         What to quantize and how, as plain values.
``split_weights``  16-bit weights where HTP computes only 8-bit ones rightly.
``storage``        Weights stored narrow and computed with in float32: int8 and fp16.
``weight_grid``    Weights on a symmetric grid: their channels, and rounding to nearest.
"""
