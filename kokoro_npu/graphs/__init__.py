"""Any ONNX file: what it holds, what it costs, where its weights lie, how it runs on a CPU.

``cost``            What a graph costs, counted from its shapes: multiply-accumulates, weight bytes.
``counting``        What an ONNX model is made of: nodes and bytes by operator, type or place.
``reading``         Any ONNX file, split or not: reading its graph, walking its nodes.
``sessions``        ONNX Runtime on the CPU, set up the same way everywhere.
``shared_weights``  One weight file for all buckets: large initializers as external data.
"""
