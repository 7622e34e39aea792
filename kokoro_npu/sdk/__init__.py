"""The SDK bundle: one directory with all that an application needs to speak, and a manifest that vouches for it.

``bundle``    An SDK bundle opened: its manifest follows the schema, and every file is what the manifest says.
``manifest``  ``manifest.json`` of an SDK bundle: everything that the host must know.
``package``   A build to an SDK bundle: the same build gives the same bytes.
``vectors``   Test vectors of the host's steps, made by this project's own.
"""
