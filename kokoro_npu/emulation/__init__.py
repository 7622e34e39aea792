"""What HTP would compute, run on the x86 emulation of it that ships with ``onnxruntime-qnn``.

The emulation gives numerics, never latency: its times say how long this machine worked.
"""
