"""Sound as files and as figures.

``metrics``  How far one waveform is from another.
``wav``      Audio files at the model's sample rate.
"""
