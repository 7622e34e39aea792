"""Qualcomm AI Hub: compile for and measure on real devices, through the ``qai_hub`` client as it is.

Around the client stands what it lacks: a journal and jobs named by their content, so that a killed or cut off run
adopts the job that exists instead of submitting a second; one bounded back-off; downloads that appear whole or not at
all; one-line errors; and a token that leaves nowhere.

Nothing here imports ``qai_hub`` before it is used: it is the optional extra ``aihub``.

``credentials``  Where the token comes from. The client's own reader would put the file's lines into its errors.
``devices``      Which devices are meant, checked against the service's list before anything is uploaded.
``jobs``         Jobs that are submitted once: found again by the journal or by their name.
``journal``      What was submitted, on disk before and after each step, so that a run can end anywhere.
``redaction``    The token stays inside: every text that leaves goes through here.
``service``      Calls of the ``qai_hub`` client: each with a limit, retried by one rule.
``settings``     How the service is used, and the option texts of its jobs.
``transfer``     Uploads that are remembered by their content, and downloads that appear whole or not at all.
"""
