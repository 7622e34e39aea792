"""Uploads that are remembered by their content, and downloads that appear whole or not at all."""

import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kokoro_npu.aihub.journal import Journal
from kokoro_npu.aihub.service import RefusedError, Service, UnansweredError
from kokoro_npu.errors import KokoroNpuError

if TYPE_CHECKING:
    import qai_hub

T = TypeVar("T")
_TRIES = 3
_LARGEST = 1 << 28
"""Bytes that a download may have: its size is not known beforehand."""


def uploaded_id(
    service: Service,
    journal: Journal,
    entry: str,
    what: str,
    usable: Callable[["qai_hub.Client", str], bool],
    upload: Callable[["qai_hub.Client"], str],
    size: int,
) -> str:
    """Id of something uploaded before, if the service still has it, else of a new upload.

    Args:
        service: the service.
        journal: remembers the id.
        entry: name of the journal entry, made of the content's hash.
        what: is uploaded, for the message.
        usable: whether an id of the journal can still be used; a refusal counts as no.
        upload: uploads and gives the id.
        size: in bytes.
    """
    known = str(journal.read(entry).get("id", ""))
    if known:
        try:
            if service.call(f"look up {what}", lambda client: usable(client, known)):
                return known
        except RefusedError:
            pass  # expired, or of another account: upload it again
    found = service.call(f"upload {what}", upload, transfer_bytes=size)
    journal.update(entry, id=found, what=what)
    return found


def download(
    service: Service,
    what: str,
    fetch: Callable[["qai_hub.Client", str], str | None],
    read: Callable[[Path], T],
    target: Path,
) -> T:
    """Download to a ``.part`` directory, read the file, and only then give it its name.

    Args:
        service: the service.
        what: is downloaded, for the message.
        fetch: downloads to a path and gives the path that the client made of it (it may add a suffix).
        read: reads the file and gives what the caller needs; a ``KokoroNpuError`` means that it is damaged.
        target: the final file, replaced if it exists.

    Raises:
        KokoroNpuError: no answer, or ``read`` failed on each of three downloads. ``target`` is then as before.
    """
    scratch = _scratch(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    pauses = service.pauses(what)
    damage = ""
    try:
        for attempt in range(_TRIES):
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            place = str(scratch / f"file{target.suffix}")
            # The client's own limit on silence ends a dead transfer; this one ends a trickle.
            written = service.call(what, lambda client, p=place: fetch(client, p), transfer_bytes=_LARGEST)  # type: ignore[misc]
            try:
                if not written or not Path(written).is_file():
                    raise UnansweredError("nothing came")
                path = _unpacked(Path(written), target.suffix)
                result = read(path)
                os.replace(path, target)
                return result
            except KokoroNpuError as error:
                damage = service.redactor.text(str(error))
                if attempt < _TRIES - 1:
                    pauses(error)
        raise KokoroNpuError(f"AI Hub: {what}: damaged {_TRIES} times: {damage}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def kept(read: Callable[[Path], T], target: Path) -> T | None:
    """What ``read`` makes of an earlier download, None if there is none or it is damaged."""
    shutil.rmtree(_scratch(target), ignore_errors=True)  # of a run that was killed after it gave the file its name
    try:
        return read(target)
    except KokoroNpuError:
        return None


def _scratch(target: Path) -> Path:
    return target.with_name(f".{target.name}.part")


def _unpacked(path: Path, suffix: str) -> Path:
    """The one file with ``suffix`` of an archive (the route precompiled_qnn_onnx gives one), else ``path`` itself."""
    if path.suffix == suffix or not zipfile.is_zipfile(path):
        return path
    # A fixed name: what the archive calls it must not decide where it lands.
    target = path.with_name(f"unpacked{suffix}")
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if Path(info.filename).suffix == suffix]
            if len(members) != 1:
                raise KokoroNpuError(f"the archive holds {len(members)} files *{suffix} instead of one")
            with archive.open(members[0]) as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink)
    except (zipfile.BadZipFile, EOFError, zlib.error):
        raise KokoroNpuError("the archive is damaged") from None
    return target
