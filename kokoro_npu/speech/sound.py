"""The loudspeaker: speech is played while it is made."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import SAMPLE_RATE, Array

_RATE = str(SAMPLE_RATE)
PLAYERS = (
    ("paplay", "--raw", f"--rate={_RATE}", "--channels=1", "--format=s16le"),
    ("aplay", "-q", "-t", "raw", "-f", "S16_LE", "-r", _RATE, "-c", "1", "-"),
    ("play", "-q", "-t", "raw", "-e", "signed", "-b", "16", "-r", _RATE, "-c", "1", "-"),
    ("ffplay", "-loglevel", "error", "-nodisp", "-autoexit", "-f", "s16le", "-ar", _RATE, "-i", "-"),
)
"""Programs that play raw 16-bit samples from their standard input, the first that is installed is taken."""


@contextmanager
def loudspeaker() -> Iterator[Callable[[Array], None]]:
    """A player that sounds as the parts come, [N] float32 at 24 kHz each; leaving the block waits until it has played.

    Raises:
        KokoroNpuError: no player is installed, or it failed.
    """
    command = next((player for player in PLAYERS if shutil.which(player[0])), None)
    if command is None:
        raise KokoroNpuError(
            f"--play needs one of {', '.join(player[0] for player in PLAYERS)}; install one, or write a file with -o"
        )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as player:
        assert player.stdin is not None
        assert player.stderr is not None
        stream = player.stdin

        def play(audio: Array) -> None:
            stream.write(np.rint(np.clip(audio, -1, 1) * 32767).astype("<i2").tobytes())
            stream.flush()

        try:
            yield play
            stream.close()
        except BrokenPipeError:
            pass  # its status and words say why
        said = player.stderr.read().decode(errors="replace")
    if player.returncode:
        raise KokoroNpuError(f"{command[0]} failed with status {player.returncode}: {said.strip()[-300:]}")
