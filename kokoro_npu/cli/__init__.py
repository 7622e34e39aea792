"""The command ``kokoro-npu``: one module a subcommand, imported only when it is called.

``_tables``        Tables that commands print: one look, and no line cut where the output is no terminal.
``bisect``         ``kokoro-npu bisect MODEL.onnx FEEDS``: where the HTP emulation leaves ONNX Runtime.
``check_bundle``   ``kokoro-npu check-bundle``: is an SDK bundle whole?
``count``          ``kokoro-npu count``: nodes or bytes of a model by operator, type or place.
``diff``           ``kokoro-npu diff``: what one model has that another has not.
``doctor``         ``kokoro-npu doctor``: what this machine lacks for the pipeline, and what to do about it.
``estimate_size``  ``kokoro-npu estimate-size``: bytes after quantization, from a sensitivity analysis and thresholds.
``inspect``        ``kokoro-npu inspect FILE.bin``: what an HTP context binary says of itself.
``main``           The command ``kokoro-npu``: one module of this package a subcommand.
``qnn_cost``       ``kokoro-npu qnn-cost MODEL.onnx``: what a decoder costs on HTP, as its compiler tells.
``say``            ``kokoro-npu say``: text, or phonemes, to a WAV file or the loudspeaker.
``verify``         ``kokoro-npu verify``: a text by a model and by PyTorch, as two WAV files and the metrics.
"""
