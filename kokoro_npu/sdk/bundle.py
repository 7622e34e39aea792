"""An SDK bundle opened: its manifest follows the schema, and every file is what the manifest says, to the byte."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, sha256
from kokoro_npu.geometry import Array
from kokoro_npu.sdk.manifest import DIGEST, MANIFEST, check
from kokoro_npu.speech.models import Models


@dataclass(frozen=True)
class Bundle:
    """A bundle that has passed its checks.

    Attributes:
        root: its directory.
        manifest: parsed.
    """

    root: Path
    manifest: Mapping[str, Any]

    def models(self, precision: str, npu: bool = False) -> Models:
        """What the synthesizer needs, with the decoders of one precision.

        Args:
            precision: of the ONNX decoders.
            npu: take the context binary in place of the ONNX decoder where a bucket has one.

        Raises:
            KokoroNpuError: the bundle does not hold that precision, or no context binary.
        """
        decoders = {
            bucket["frames"]: self.root / bucket["decoders"][precision]
            for bucket in self.manifest["buckets"]
            if precision in bucket["decoders"]
        }
        if not decoders:
            held = sorted({name for bucket in self.manifest["buckets"] for name in bucket["decoders"]})
            raise KokoroNpuError(
                f"{self.root} holds no {precision} decoder but {', '.join(held)}; choose --precision {held[0]}"
            )
        if npu:
            compiled = {bucket["frames"]: bucket["context_binary"] for bucket in self.manifest["buckets"]}
            named = {
                frames: self.root / found["model"] for frames, found in compiled.items() if found and found["model"]
            }
            if not named:
                raise KokoroNpuError(
                    f"{self.root} holds no context binary that the QNN provider can load; leave out --npu"
                )
            decoders |= named
        models = self.manifest["models"]
        return Models(
            self.root / models["duration"]["path"],
            self.root / models["prosody"]["path"],
            decoders,
            {name: self._voice(path) for name, path in self.manifest["voices"]["files"].items()},
            read_json(self.root / self.manifest["phonemes"]),
        )

    def _voice(self, path: str) -> Array:
        voices = self.manifest["voices"]
        pack = np.fromfile(self.root / path, dtype="<f4").astype(np.float32)
        return pack.reshape(voices["rows"], voices["columns"])


def open_bundle(root: Path | str, verify: bool = True) -> Bundle:
    """Open a bundle.

    Args:
        root: its directory.
        verify: read every file and compare its digest; without it only names and sizes are compared, for a bundle
            that this process has verified before.

    Raises:
        KokoroNpuError: it is no bundle, its manifest does not follow the schema, or a file is missing, is not
            listed, or differs in a single byte.
    """
    root = Path(root)
    path = root / MANIFEST
    if not path.is_file():
        raise KokoroNpuError(f"{root} is no SDK bundle: it has no {MANIFEST}; the stage `package` makes artifacts/sdk")
    digest = root / DIGEST
    if not digest.is_file() or digest.read_bytes() != digest_line(path):
        raise KokoroNpuError(f"{path} is not the file that {DIGEST} vouches for; take the bundle again")
    try:
        manifest = read_json(path)
    except ValueError as error:
        raise KokoroNpuError(f"{path} is not JSON: {error}") from error
    check(manifest, str(path))
    _check_files(root, manifest["files"], verify)
    return Bundle(root, manifest)


def digest_line(manifest: Path) -> bytes:
    """What ``manifest.sha256`` holds, in the form that ``sha256sum --check`` reads."""
    return f"{sha256(manifest)}  {manifest.name}\n".encode()


def _check_files(root: Path, listed: Mapping[str, Mapping[str, Any]], verify: bool) -> None:
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - {MANIFEST, DIGEST}
    if extra := sorted(found - set(listed)):
        raise KokoroNpuError(f"{root / extra[0]} is not listed in the bundle's manifest; remove it")
    for name, entry in sorted(listed.items()):
        path = root / name
        if name not in found:
            raise KokoroNpuError(f"{path} is missing from the bundle; take the bundle again")
        if path.stat().st_size != entry["bytes"]:
            raise KokoroNpuError(
                f"{path} has {path.stat().st_size} bytes, its manifest says {entry['bytes']}; take the bundle again"
            )
        if verify and sha256(path) != entry["sha256"]:
            raise KokoroNpuError(f"{path} is damaged: its SHA-256 is not the manifest's; take the bundle again")
