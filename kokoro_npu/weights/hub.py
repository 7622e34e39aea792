"""Source ``hub``: the release itself, ``hexgrad/Kokoro-82M`` at a pinned revision, by huggingface_hub."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.file_download import http_get

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256
from kokoro_npu.weights.checkpoint import write_release
from kokoro_npu.weights.options import ANY, OPTIONAL_SHA256, SHA256, TEXT, Kind, check

_REVISION = re.compile(r"[0-9a-f]{40}")
_VOICE = re.compile(r"[A-Za-z0-9_-]+")
_OPTIONS = {
    "source": TEXT,
    "repository": TEXT,
    "revision": Kind("a commit (40 hex digits): a name can move", lambda value: bool(_REVISION.fullmatch(str(value)))),
    "endpoint": ANY,
    "model": ANY,
    "config": ANY,
    "voices": Kind(
        "a mapping of voice names to their sha256 (null: not pinned)",
        lambda value: isinstance(value, Mapping) and bool(value) and all(_VOICE.fullmatch(str(name)) for name in value),
    ),
}
_FILE = {"file": TEXT, "sha256": SHA256}
_HEAD_SECONDS = 10.0
_SHOWN = 200
"""Characters of the client's own error that a message repeats."""


def fetch(options: Mapping[str, Any], out_dir: Path, cache_dir: Path) -> None:
    """Download checkpoint, config and voices, check their hashes, and write the canonical files.

    Whole files stay in ``cache_dir/hub``, a cut one stays as ``.part`` and is continued, so an interrupted
    run resumes. A file whose hash differs is removed, so that the next run downloads it anew. No token is
    sent: the release is public.

    Args:
        options: the keys of ``conf/weights/hub.yaml``.
        out_dir: gets the canonical files.
        cache_dir: keeps the downloads.

    Raises:
        KokoroNpuError: the hub cannot be reached, a file is absent or cut, a hash or a tensor is at fault.
    """
    check(options, _OPTIONS, "weights")
    for key in ("model", "config"):
        check(options[key], _FILE, f"weights.{key}")
    check(options["voices"], dict.fromkeys(options["voices"], OPTIONAL_SHA256), "weights.voices")
    model, config, repository = options["model"]["file"], options["config"]["file"], options["repository"]
    voices = {voice: f"voices/{voice}.pt" for voice in options["voices"]}
    pins = {model: options["model"]["sha256"], config: options["config"]["sha256"]}
    pins |= {name: options["voices"][voice] for voice, name in voices.items()}

    endpoint = options["endpoint"] or os.environ.get("HF_ENDPOINT") or None
    cache = cache_dir / "hub" / options["revision"]
    for name in pins:
        _download(repository, options["revision"], name, endpoint, cache)
    source = {
        "source": "hub",
        "repository": repository,
        "revision": options["revision"],
        "files": {name: _verified(name, cache / name, pin) for name, pin in pins.items()},
        "unpinned": sorted(name for name, pin in pins.items() if pin is None),
        "dither": False,
        "dither_seed": None,
    }
    packs = {voice: cache / name for voice, name in voices.items()}
    write_release(out_dir, cache / model, cache / config, packs, source)


def _download(repository: str, revision: str, name: str, endpoint: str | None, cache: Path) -> None:
    """Download a file into ``cache`` unless it lies there whole.

    `hf_hub_download` throws a partial file away when the process ends, so the client's own `http_get` writes
    into a ``.part`` that the next run continues.
    """
    path = cache / name
    if path.is_file():
        return
    part = path.with_name(f"{path.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        url = hf_hub_url(repository, name, revision=revision, endpoint=endpoint)
        size = get_hf_file_metadata(url, token=False, timeout=_HEAD_SECONDS).size
        with open(part, "ab") as stream:
            http_get(url, stream, resume_size=stream.tell(), expected_size=size, displayed_filename=name)
        os.replace(part, path)
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
        raise KokoroNpuError(
            f"weights: {endpoint or 'the hub'} has no {name} in {repository} at {revision}; check conf/weights/hub.yaml"
        ) from None
    except Exception as error:
        # Whatever the client's HTTP library raises; which one it is differs between versions of the client.
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise KokoroNpuError(
            f"weights: could not download {name} of {repository} from {endpoint or 'the hub'} "
            f"({reason[0][:_SHOWN]}); what arrived is kept, run again to go on, "
            "or use weights=wheel, which needs no hub"
        ) from None


def _verified(name: str, path: Path, pin: str | None) -> str:
    measured = sha256(path)
    if pin is not None and measured != pin:
        path.unlink()
        raise KokoroNpuError(
            f"weights: {name} has sha256 {measured}, but conf/weights/hub.yaml pins {pin}; "
            "the file was removed, run again to download it anew"
        )
    return measured
