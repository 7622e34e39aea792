"""Further runtimes for the static decoder, each behind an extra of pyproject.toml and in one module of its own.

A runtime's module holds all of its quirks. It converts a torch module to a file (``convert``), and runs the file: as a
``BACKEND`` in a process of its own, which needs no converter, so that time and memory can be measured beside ONNX
Runtime's (:mod:`kokoro_npu.runtimes.measure`); or, for CoreML, op by op.
"""
