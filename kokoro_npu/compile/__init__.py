"""From a static decoder to an HTP context binary, by the local compiler or by Qualcomm AI Hub.

``aihub``          Compile backend of Qualcomm AI Hub: its compiler, for devices that it has.
``backends``       From a static decoder to an HTP context binary.
``binary``         What an HTP context binary is: chip, QAIRT build and graphs.
``binary_reader``  Reads an HTP context binary through ``libQnnSystem.so`` of the onnxruntime-qnn wheel.
``chips``          The table of chips: one YAML file a chip, with the source of its numbers.
``local``          Local compile backend: Qualcomm's offline HTP compiler in a child process.
``memory``         Does a bucket fit the compiler and this machine? Asked before the compiler starts.
``op_cost``        What a decoder costs on HTP, as its compiler tells: ops by kind, memory.
``options``        What the QNN compiler is asked for: target, level, and an allow-list of options.
``report``         The flat report of one bucket's compile, the same from every backend.
``shared``         The decoders of all buckets as one HTP context binary: what the SDK bundle ships.
``toolchain``      Qualcomm's compiler as the ``onnxruntime-qnn`` wheel ships it: is it here, which version.
``worker``         Child process that touches Qualcomm's libraries.
"""
