"""What a build leaves on disk: names, places, reports.

``labels``   Names of the decoders that are compared, as tables and audio files carry them.
``places``   Where a build keeps its files: the names of the models, and the places of artifacts and reports.
``reports``  Reports of a build: written with their provenance, read with errors of one line.
"""
