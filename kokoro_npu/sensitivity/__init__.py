"""Sensitivity analysis: parts of the models quantized alone, and the recipe that follows.

``analysis``  The parts of a model, one of them quantized at a time, and the table of what that does to the sound.
``bench``     What a part is measured on: windows of utterances through all three models.
``derive``    From the table and thresholds to a recipe.
``estimate``  How large a model becomes when each node takes the width that the table and thresholds allow.
``table``     The table: its row and its reader.
"""
