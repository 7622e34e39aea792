"""Quantization of the decoder: encodings measured once, applied to every bucket by tensor name.

Upstream of this package is ``onnxruntime.quantization``, the living home of ``onnxruntime-tools``.

``apply``          Encodings and a decoder to a quantized decoder.
``calibrate``      Activation ranges, measured on a few small buckets for all buckets.
``cpu``            Quantization of the CPU models (duration and prosody): integer arithmetic where it pays.
``encodings``      Encodings of tensors that only hold copies of others.
``overrides``      Recipe files: how each group of nodes is quantized, and why.
``preparation``    What every bucket's quantized decoder is made from: encodings by tensor name.
``recipe``         What to quantize and how, as plain values.
``rounded``        Weights rounded to nearest on a symmetric grid.
``split_weights``  16-bit weights where HTP computes only 8-bit ones rightly.
``static8``        The decoder in static 8 bits, weights and activations: for CPUs and for NNAPI.
``storage``        Weights stored narrow and computed with in float32: int8.
"""
