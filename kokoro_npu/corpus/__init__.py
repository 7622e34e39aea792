"""The utterances that calibrate and judge, and the reference set that is recorded from them.

``recording``      Records the reference set.
``reference_set``  The reference set: decoder inputs and reference audio of the corpus.
``utterances``     The committed corpus: what calibrates the quantizer, and what judges the result.
"""
