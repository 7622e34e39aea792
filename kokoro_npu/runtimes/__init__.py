"""Further runtimes for the static decoder, each in one module and in one pipeline of the same name.

Such a module holds all of its runtime's quirks, and one ``RUNTIME``, a :class:`kokoro_npu.runtimes.compare.Runtime`:
its name, the distributions that it is made of, and ``export``, a function that writes a decoder's files into a
directory and judges them, for which :func:`kokoro_npu.runtimes.compare.compare` is enough where the runtime runs on
this machine. Its pipeline, ``pipelines/<name>``, has one stage a bucket, whose script calls
:func:`kokoro_npu.runtimes.compare.export_decoder`. Bounds on its figures stand in ``runtimes.gates.<name>`` of the
configuration. Nothing else names a runtime: the table is made of the reports that there are.

``compare``       A bucket's decoder on one runtime: judged against PyTorch, timed beside ONNX Runtime, reported, gated.
``coreml``        CoreML: torch modules to ML programs, and what such a program computes.
``executorch``    ExecuTorch: torch modules to ``.pte`` programs that run on XNNPACK.
``extras``        Whether an extra is installed, in a version that the project was tested with.
``litert``        LiteRT: torch modules to ``.tflite`` files, their int8 forms, and how they run.
``litert_parts``  The models before the decoder for LiteRT: durations and features, then F0 and energy.
``measure``       A decoder on a runtime, in a process of its own: its audio, its time beside others', its memory.
``mil``           CoreML's MIL programs run op by op in torch, because CoreML itself predicts only on macOS.
``nnapi``         What Android's NNAPI can carry of a decoder: ONNX Runtime's mobile usability checker.
``shown``         The table of runtimes for a reader: as text cells, for the reviewer's page and as Markdown.
``static_parts``  The duration and prosody models at fixed sizes.
``table``         One table of what each runtime makes of the decoder.
"""
