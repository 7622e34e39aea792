"""From a static decoder to an HTP context binary, by the local compiler or by Qualcomm AI Hub.

``aihub``          The compiler of Qualcomm AI Hub, for devices that it has.
``backends``       The compilers by their config names: the one place that knows both.
``binary``         What an HTP context binary is: chip, QAIRT build and graphs.
``binary_reader``  Reads an HTP context binary through ``libQnnSystem.so`` of the onnxruntime-qnn wheel.
``chips``          The table of chips: one YAML file a chip, with the source of its numbers.
``local``          Qualcomm's offline HTP compiler in a child process on this machine.
``memory``         Does a bucket fit the compiler and this machine? Asked before the compiler starts.
``op_cost``        What a decoder costs on HTP, as its compiler tells: ops by kind, memory.
``options``        What the QNN compiler is asked for: chip, level, and an allow-list of options.
``report``         What every compile backend leaves: an empty directory to begin with, one flat report, and why not.
``shared``         The decoders of all buckets as one HTP context binary: what the SDK bundle ships.
``toolchain``      Qualcomm's compiler as the ``onnxruntime-qnn`` wheel ships it: is it here, which version.
``worker``         The child process that loads Qualcomm's libraries.
"""
