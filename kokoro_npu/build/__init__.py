"""What a build leaves on disk: names, places, reports.

``labels``  Names of the decoders that are compared, as tables and audio files carry them.
"""
