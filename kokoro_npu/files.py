"""Files written whole or not at all, and their hashes."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

_CHUNK = 1 << 20


@contextmanager
def atomic(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces ``path`` when the block ends without an error.

    The temporary keeps the suffix of ``path``, because savers such as numpy's append their own. On an error it is
    removed, so that a killed or failed writer leaves either the old file or none.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield tmp
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)


def sha256(path: Path | str) -> str:
    """Hex SHA-256 of a file, read in chunks."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` as indented UTF-8 JSON with sorted keys and a final newline, atomically.

    Sorted keys and a fixed layout keep a rebuilt report byte-identical.
    """
    with atomic(path) as tmp:
        tmp.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path | str) -> Any:
    """Parse a UTF-8 JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_onnx(path: Path | str, model: "onnx.ModelProto") -> None:
    """Write a model, atomically and with the same bytes each time."""
    with atomic(path) as tmp:
        tmp.write_bytes(model.SerializeToString(deterministic=True))
