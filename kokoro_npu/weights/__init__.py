"""Weights as data: sources in, canonical files out, and loaders for everything downstream.

``canonical``   The canonical weight files that every source ends in, and that everything downstream reads.
``checkpoint``  Upstream's checkpoint format: a ``.pth`` of five state dicts, and ``.pt`` voice packs.
``file``        Source ``file``: a local checkpoint, its config and a folder of voices.
``hub``         Source ``hub``: the release itself, ``hexgrad/Kokoro-82M`` at a pinned revision.
``kmodel``      `kokoro.KModel` built from a config without a network: its tensor table.
``onnx_int8``   The dynamic-int8 ONNX export of Kokoro v1.0, mapped back to the tensors of `kokoro.KModel`.
``options``     Reading a source's options: typos, gaps and wrong types are said in one line.
``sources``     The sources of the weights, by name.
``wheel``       Source ``wheel``: Kokoro v1.0 from the package index.
``writing``     Writes the canonical weight files (:mod:`kokoro_npu.weights.canonical`).
"""
