"""The one exception that users see, a single line that says what, where, and what to do; and its hint at a typo."""

import difflib
from collections.abc import Iterable


class KokoroNpuError(Exception):
    """A failure that the user can act on.

    The message is one line. Stages and commands print it as ``error: <message>`` and exit with 1; any other
    exception is a defect of ours and keeps its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


_MOST_LISTED = 20
"""Names that the hint lists where none is near."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The hint of an error about a name that is not among ``known``.

    ``did you mean sm8650?`` where a known name is near, else ``known: sm8550, sm8650``.
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=2, cutoff=0.5)
    listed = names if len(names) <= _MOST_LISTED else [*names[:_MOST_LISTED], "…"]
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(listed)}"
