"""Source ``file``: a local checkpoint, its config and a folder of voices."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256
from kokoro_npu.weights import canonical
from kokoro_npu.weights.checkpoint import read_config, read_model, read_voices_dir
from kokoro_npu.weights.options import check_keys, sha256_pin, text
from kokoro_npu.weights.writing import write

_KEYS = ("source", "model", "model_sha256", "config", "config_sha256", "voices")


def fetch(options: Mapping[str, Any], out_dir: Path, _cache_dir: Path) -> None:
    """Read the local files and write the canonical ones; nothing is downloaded.

    Args:
        options: the keys of ``conf/weights/file.yaml``.
        out_dir: gets the canonical files.
        _cache_dir: not used; the other sources keep their downloads there.

    Raises:
        KokoroNpuError: a file is missing, cut or of another hash, or a tensor or voice is at fault (named).
    """
    check_keys(options, _KEYS, "weights")
    paths, hashes = {}, {}
    for key in ("model", "config"):
        path = Path(text(options, key, "weights")).expanduser()
        if not path.is_file():
            raise KokoroNpuError(f"weights.{key}: {path} does not exist; give upstream's {key} file")
        pin = sha256_pin(options[f"{key}_sha256"], f"weights.{key}_sha256", optional=True)
        measured = sha256(path)
        if pin is not None and measured != pin:
            raise KokoroNpuError(
                f"weights.{key}: {path} has sha256 {measured}, but weights.{key}_sha256 pins {pin}; "
                "fix the file or the pin"
            )
        paths[key], hashes[path.name] = path, measured
    folder = Path(text(options, "voices", "weights")).expanduser()
    voices = read_voices_dir(folder)
    hashes |= {p.name: sha256(p) for p in sorted(folder.iterdir()) if p.suffix in (".pt", ".npz")}

    config = read_config(paths["config"])
    canonical.check_config(config, str(paths["config"]))
    # File names without folders: the same files give the same bytes wherever they lie.
    source = {"source": "file", "files": hashes, "dither": False, "dither_seed": None}
    write(out_dir, read_model(paths["model"], config), voices, config, source)
