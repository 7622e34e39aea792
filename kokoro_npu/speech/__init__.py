"""Text to speech with the split model: what an SDK does around it, as a reference that is tested against PyTorch.

``phonemizer``    text to Kokoro's phonemes, offline
``alphabet``      the phoneme alphabet, and what a symbol outside it probably means
``utterances``    phonemes to utterances: at sentence, then clause boundaries
``source_noise``  the Gaussian draws of the source, the same bits in any language
``synthesizer``   an utterance to audio: duration model, alignment, bucket, padding, decoder, trimming
``joining``       utterances to one signal without clicks
``models``        which files do it: those of a build or of an SDK bundle

The steps between the models are in `kokoro_npu.runtime` and `kokoro_npu.frontend`.
"""
