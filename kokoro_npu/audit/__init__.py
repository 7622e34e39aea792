"""What the NPU takes: op types, dynamic dimensions, placement by Qualcomm's own compiler.

``decoder``    What a bucket's decoders are made of, and what of it the NPU takes: tables and a report.
``ops``        What a graph alone tells: blocking ops, dynamic dimensions.
``placement``  Which nodes Qualcomm's compiler takes, without finalizing anything.
"""
