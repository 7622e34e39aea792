"""Weights as data: sources in, canonical files out, and loaders for everything downstream.

``canonical``   The canonical weight files that every source ends in: their names, and how they are read.
``checkpoint``  Upstream's files: a ``.pth`` of five state dicts, ``config.json``, and ``.pt`` voice packs.
``file``        Source ``file``: a local checkpoint, its config and a folder of voices.
``hub``         Source ``hub``: the release itself, ``hexgrad/Kokoro-82M`` at a pinned revision.
``kmodel``      `kokoro.KModel` built from a config without a network: its tensor table, and with its weights.
``onnx_int8``   The dynamic-int8 ONNX export of Kokoro v1.0, mapped back to the tensors of `kokoro.KModel`.
``options``     A source's options, checked before any download.
``sources``     The sources of the weights, by name.
``wheel``       Source ``wheel``: Kokoro v1.0 from the package index.
``writing``     Writes the canonical weight files, all checked before the first.
"""
