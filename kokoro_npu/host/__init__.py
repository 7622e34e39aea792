"""What an application does between the models, in plain numpy.

``frontend``      Phonemes and a voice to decoder features.
``source_noise``  The Gaussian draws of the harmonic source, the same bits in any language.
``steps``         The host's part: repeat tokens by their durations, choose a bucket, pad, and trim.
"""
