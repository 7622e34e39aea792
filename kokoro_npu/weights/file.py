"""Source ``file``: a local checkpoint, its config and a folder of voices."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256
from kokoro_npu.weights.checkpoint import write_release
from kokoro_npu.weights.options import OPTIONAL_SHA256, TEXT, check

_OPTIONS = {
    "source": TEXT,
    "model": TEXT,
    "model_sha256": OPTIONAL_SHA256,
    "config": TEXT,
    "config_sha256": OPTIONAL_SHA256,
    "voices": TEXT,
}


def fetch(options: Mapping[str, Any], out_dir: Path, _cache_dir: Path) -> None:
    """Read the local files and write the canonical ones; nothing is downloaded.

    Args:
        options: the keys of ``conf/weights/file.yaml``.
        out_dir: gets the canonical files.
        _cache_dir: not used; the other sources keep their downloads there.

    Raises:
        KokoroNpuError: a file is missing, cut or of another hash, or a tensor or voice is at fault (named).
    """
    check(options, _OPTIONS, "weights")
    model, config, folder = (Path(options[key]).expanduser() for key in ("model", "config", "voices"))
    hashes = {}
    for key, path in (("model", model), ("config", config)):
        if not path.is_file():
            raise KokoroNpuError(f"weights.{key}: {path} does not exist; give upstream's {key} file")
        hashes[path.name] = sha256(path)
        if (pin := options[f"{key}_sha256"]) not in (None, hashes[path.name]):
            raise KokoroNpuError(
                f"weights.{key}: {path} has sha256 {hashes[path.name]}, but weights.{key}_sha256 pins {pin}; "
                "fix the file or the pin"
            )
    voices = {path.stem: path for path in sorted(folder.glob("*.pt"))}
    if not voices:
        raise KokoroNpuError(f"weights.voices: {folder} is no folder with .pt voice packs")
    # File names without folders: the same files give the same bytes wherever they lie.
    hashes |= {path.name: sha256(path) for path in voices.values()}
    source = {"source": "file", "files": hashes, "dither": False, "dither_seed": None}
    write_release(out_dir, model, config, voices, source)
