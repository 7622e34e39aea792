"""What was submitted, on disk before and after each step, so that a run can end anywhere.

One file an entry: two devices, or two stages, never write the same one. A lost journal costs nothing but time: jobs are
found again by their name.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kokoro_npu.aihub.redaction import Redactor
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, write_json


def content_key(*parts: Any) -> str:
    """SHA-256 of JSON-able parts: equal jobs have equal keys on any machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Journal:
    """Entries (flat dicts) by name in a directory."""

    def __init__(self, directory: str, redactor: Redactor) -> None:
        self.directory = Path(directory)
        self._redactor = redactor

    def path(self, name: str) -> Path:
        """File of an entry."""
        return self.directory / f"{name}.json"

    def read(self, name: str) -> dict[str, Any]:
        """The entry, empty if there is none.

        Raises:
            KokoroNpuError: the file is damaged.
        """
        path = self.path(name)
        try:
            entry = read_json(path)
        except FileNotFoundError:
            return {}
        except (ValueError, OSError):
            entry = None
        if not isinstance(entry, dict):
            raise KokoroNpuError(
                f"{path} is no journal entry; delete it: a job that was submitted is found again by its name"
            )
        return entry

    def update(self, name: str, **changes: Any) -> dict[str, Any]:
        """Set keys of an entry, atomically, and return it; a value of None removes its key."""
        entry = {key: value for key, value in (self.read(name) | changes).items() if value is not None}
        texts = {key: self._redactor.text(value) for key, value in entry.items() if isinstance(value, str)}
        write_json(self.path(name), entry | texts)
        return entry

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold an entry against other processes; the kernel lets go of it when this one ends, however it ends.

        Raises:
            KokoroNpuError: another process holds it.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / f"{name}.lock", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise KokoroNpuError(
                    f"{lock.name} is held by another run of the same job; let it finish first"
                ) from None
            for leftover in self.directory.glob(f".{name}.*.part.json"):  # of a killed run (files.atomic)
                leftover.unlink()
            yield
