"""Any ONNX file: what it holds, what it costs, where its weights lie, how it runs on a CPU.

``cost``            What a graph costs, counted from its shapes: multiply-accumulates, weight and activation bytes.
``counting``        What a model is made of: nodes and bytes by operator, type or place; what differs between two.
``reading``         Reading a graph, walking its nodes, and which nodes compute with which stored tensor.
``sessions``        ONNX Runtime on the CPU, set up the same way everywhere.
``shared_weights``  One weight file for all buckets: large initializers as external data, found by their content.
"""
