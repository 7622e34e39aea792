"""What the NPU takes: op types, dynamic dimensions, placement by Qualcomm's own compiler.

``decoder``    Op audit: what a decoder's graph is made of, and what of it the NPU takes.
``ops``        What a graph alone tells: blocking ops, dynamic dimensions.
``placement``  The truth beside the table: which nodes Qualcomm's compiler takes, without finalizing anything.
"""
