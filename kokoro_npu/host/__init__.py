"""What an application does between the models, in plain numpy.

``frontend``      Tokens and a voice to decoder features, through the two CPU models.
``source_noise``  The Gaussian draws of the harmonic source, the same bits in any language.
``steps``         The host's part: repeat tokens by their durations, choose a bucket, pad, and trim.
``tokens``        Phonemes to what the first model takes: token ids and a row of a voice pack.
"""
