"""Whole models: the split model in other precisions, and the public int8 monolith.

``comparison``    Writes the variants of the whole model and compares them with each other and with the monolith.
``conversion``    The whole model in the five precisions that kokoro-onnx-export publishes.
``monolith``      The public int8 monolith: Kokoro v1.0 as one dynamic-int8 ONNX.
``verification``  One text spoken by a model and by upstream's PyTorch model, to listen to and to measure.
``whole_model``   Whole models by one measure: text tokens in, audio out.
"""
