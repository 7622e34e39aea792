"""What a build is worth: fidelity, time, memory, words.

``cpu_profile``     Latency and memory of the split model on ONNX Runtime CPU.
``device_profile``  One inference job a device: its latency, memory and placement.
``emulated``        The whole decoder through the HTP emulation, against upstream's unpadded PyTorch model.
``gates``           Gates on parity: bounds of a variant's worst figure, and the utterances that each of them judges.
``parity``          Parity of one bucket with upstream's unpadded PyTorch model.
``spoken``          An utterance in several precisions, each in the bucket that a host would choose.
``summary``         The summary of a build: the worst figure of each kind over its buckets.
``word_errors``     Listening by machine: how many words an offline recogniser gets wrong.
"""
