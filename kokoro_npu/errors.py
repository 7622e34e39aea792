"""The one exception that users see: a single line that says what, where, and what to do."""


class KokoroNpuError(Exception):
    """A failure that the user can act on.

    The message is one line. Stages and commands print it as ``error: <message>`` and exit with 1; any other
    exception is a defect of ours and keeps its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
