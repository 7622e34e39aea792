"""The SDK bundle: one directory with all that an application needs to speak, and a manifest that vouches for it.

``package``   a build to a bundle
``manifest``  what the manifest says
``card``      the model card
``bundle``    a bundle opened: checked, refused if a byte is wrong
``vectors``   test vectors of the host's steps, for implementations in other languages
"""
