"""The torch side: Kokoro's modules rebuilt for static export, and the export.

``blocks``      The static decoder's blocks: what upstream's have, with masked statistics.
``convs``       One-dimensional layers of upstream as two-dimensional ones over [1, C, R, W].
``decoder``     The static decoder: Kokoro's decoder for a fixed number of frames, exact at any padding.
``duration``    The duration model: tokens and a voice to durations and per-token features, on the CPU.
``export``      The static decoder as an ONNX file, every dimension an integer.
``export_cpu``  The duration and prosody models as ONNX files, dynamic in time.
``folding``     Time folding, for buckets whose last rate is wider than what HTP's compiler is quick at.
``istft``       The exact inverse STFT as two convolutions, and the forward STFT of the source.
``prosody``     The prosody model: aligned features to F0, energy and the source's STFT, on the CPU in float32.
``reference``   The truth that everything is measured against: upstream's own model, unpadded.
``torch_cpu``   PyTorch on the CPU, set up the same way everywhere.
``tracing``     Any torch module to ONNX: traced, simplified, with the same bytes each time.
"""
