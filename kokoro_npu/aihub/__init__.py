"""Qualcomm AI Hub: compile for and measure on real devices, through the ``qai_hub`` client as it is.

Around the client stands what it lacks: a journal and jobs named by their content, so that a killed or cut off run
adopts the job that exists instead of submitting a second; one bounded back-off; downloads that appear whole or not at
all; one-line errors; and a token that leaves nowhere.

Nothing here imports ``qai_hub`` before it is used: it is the optional extra ``aihub``.
"""
