"""An SDK bundle opened: its manifest follows the schema, and every file is what the manifest says, to the byte."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, sha256
from kokoro_npu.sdk.manifest import DIGEST, MANIFEST, check, digest_line
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
        buckets, models, voices = (self.manifest[key] for key in ("buckets", "models", "voices"))
        paths = {each["frames"]: each["decoders"][precision] for each in buckets if precision in each["decoders"]}
        if not paths:
            (held,) = buckets[0]["decoders"]
            raise KokoroNpuError(f"{self.root} holds no {precision} decoder but {held}; choose --precision {held}")
        if npu:
            compiled = {bucket["frames"]: bucket["context_binary"] or {} for bucket in buckets}
            named = {frames: binary["model"] for frames, binary in compiled.items() if binary.get("model")}
            if not named:
                raise KokoroNpuError(
                    f"{self.root} holds no context binary that the QNN provider can load; leave out --npu"
                )
            paths |= named
        shape = voices["rows"], voices["columns"]
        return Models(
            self.root / models["duration"]["path"],
            self.root / models["prosody"]["path"],
            {frames: self.root / path for frames, path in paths.items()},
            {name: np.fromfile(self.root / path, "<f4").reshape(shape) for name, path in voices["files"].items()},
            read_json(self.root / self.manifest["phonemes"]),
        )


def open_bundle(root: Path | str) -> Bundle:
    """Open a bundle, and read every file of it to compare its digest.

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
    manifest = read_json(path)
    check(manifest, str(path))
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - {MANIFEST, DIGEST}
    if extra := sorted(found - set(manifest["files"])):
        raise KokoroNpuError(f"{root / extra[0]} is not listed in the bundle's manifest; remove it")
    for name, entry in sorted(manifest["files"].items()):
        if name not in found:
            raise KokoroNpuError(f"{root / name} is missing from the bundle; take the bundle again")
        if sha256(root / name) != entry["sha256"]:
            raise KokoroNpuError(f"{root / name} is damaged: its SHA-256 is not the manifest's; take the bundle again")
    return Bundle(root, manifest)
