"""What HTP would compute, run on the x86 emulation of it that ships with ``onnxruntime-qnn``.

The emulation gives numerics, never latency: its times say how long this machine worked.

``bisect``    Where the HTP emulation leaves ONNX Runtime: a graph cut at every tensor.
``classes``   The distinct (op, attributes, shape class) of a decoder, each with a node that stands for it.
``graph``     Parts of a graph as models of their own, and the values of tensors inside a graph.
``htp``       Models through the HTP emulation, each in a child process, so that a crash costs one answer.
``numerics``  Numerical op audit: each distinct piece of a decoder's work alone through the HTP emulation.
"""
