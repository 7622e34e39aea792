"""Further runtimes for the static decoder, each behind an extra of pyproject.toml and in one module of its own.

A runtime's module holds all of its quirks. It converts a torch module to a file (``convert``), and runs the file: as a
``BACKEND`` in a process of its own, which needs no converter.
Runtime's (:mod:`kokoro_npu.runtimes.measure`); or, for CoreML, op by op.

``advice``        Which runtime to take on a CPU, by the table of runtimes.
``compare``       One decoder on one runtime against the unpadded PyTorch model.
``coreml``        CoreML: torch modules to ML programs, and what such a program computes.
``executorch``    ExecuTorch: torch modules to ``.pte`` programs that run on XNNPACK.
``extras``        Whether an extra is installed, in a version that the project was tested with.
``litert``        LiteRT: torch modules to ``.tflite`` files, their int8 forms, and how they run.
``litert_parts``  The models before the decoder for LiteRT, as seed 2 has them: durations and features.
``measure``       A decoder on a runtime, in a process of its own: its audio, its time beside others'.
``mil``           CoreML's MIL programs run op by op in torch, because CoreML itself predicts only on macOS.
``nnapi``         What Android's NNAPI can carry of a decoder: ONNX Runtime's mobile usability checker.
``shown``         The table of runtimes for a reader: as text cells, for the reviewer's page and as Markdown.
``static_parts``  The duration and prosody models at fixed sizes.
``table``         One table of what each runtime makes of the decoder.
"""
