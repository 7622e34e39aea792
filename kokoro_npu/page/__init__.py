"""The reviewer's page: one self-contained HTML file, its short form for pull requests, and charts as files.

``baseline``  Reports of a git commit, and what is worse than there.
``charts``    Bar charts as SVG with the same bytes each time.
``figures``   The figures that the page shows: where each stands in the reports, its name for people.
``page``      The reviewer's page: one self-contained HTML file, its short form for pull requests.
``sound``     Audio of a build as the page carries it: lossless players and spectrograms.
"""
