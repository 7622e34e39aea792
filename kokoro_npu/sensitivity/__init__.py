"""Sensitivity analysis: parts of the decoder quantized alone, and the recipe that follows.

``analysis``  Trials: one part of a model quantized alone, and what that does to the sound.
``bench``     What a trial is measured on: windows of utterances through all three models.
``derive``    From trials and thresholds to a recipe.
``estimate``  How large a model becomes when each node takes the width that its trial and the thresholds allow..
``table``     The table of trials: its row, its writer and its reader.
"""
