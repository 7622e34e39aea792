"""One weight file for all buckets: large initializers as external data, found by their content.

The decoders of all buckets hold the same weights, which would be stored once a bucket. A pack holds each once, and
an index maps the SHA-256 of the bytes to their place, so that a decoder can only refer to bytes that it would have
stored itself: a weight that differs is not found, which is an error and not a wrong sound.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import onnx
from onnx.external_data_helper import set_external_data

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic, read_json, write_json, write_onnx

_ALIGNMENT = 4096
"""Offsets are page-aligned, so that runtimes can map the file."""

MIN_BYTES = 1024
"""Smaller initializers stay in the model, among them the constants that depend on the bucket."""


@dataclass(frozen=True)
class Pack:
    """A weight file and where it keeps what.

    Attributes:
        path: the file of concatenated raw tensors.
        places: hex SHA-256 of a tensor's raw bytes to (offset, bytes).
    """

    path: Path
    places: dict[str, tuple[int, int]]

    @staticmethod
    def index_path(path: Path) -> Path:
        """Where the index of the pack at ``path`` lies."""
        return path.with_name(path.name + ".json")

    @classmethod
    def open(cls, path: Path) -> "Pack":
        """Read the index of the pack at ``path``."""
        places = read_json(cls.index_path(path))
        return cls(path, {digest: (place["offset"], place["length"]) for digest, place in places.items()})

    @classmethod
    def write(cls, model: onnx.ModelProto, path: Path, alignment: int = _ALIGNMENT) -> "Pack":
        """Write every large initializer of ``model`` (weights inside it) to ``path``, and the index beside it.

        Each starts at a multiple of ``alignment``. The order is that of the contents' hashes, so that two exports of
        the same weights give the same bytes.
        """
        contents = {digest: raw for _, digest, raw in _large_initializers(model)}
        places: dict[str, tuple[int, int]] = {}
        with atomic(path) as tmp, open(tmp, "wb") as stream:
            for digest in sorted(contents):
                stream.write(b"\0" * (-stream.tell() % alignment))
                places[digest] = (stream.tell(), len(contents[digest]))
                stream.write(contents[digest])
        write_json(cls.index_path(path), {key: {"offset": at, "length": size} for key, (at, size) in places.items()})
        return cls(path, places)

    def save(self, model: onnx.ModelProto, path: Path) -> None:
        """Save ``model`` at ``path`` with its large initializers taken from the pack.

        Args:
            model: a model with its weights inside; it is changed.
            path: the file to write, beside the pack, as ONNX demands.

        Raises:
            KokoroNpuError: an initializer's bytes are not in the pack.
        """
        for tensor, digest, raw in _large_initializers(model):
            if digest not in self.places:
                raise KokoroNpuError(
                    f"{path.name}: weight {tensor.name} {list(tensor.dims)} is not in {self.path}: "
                    "it was written from other weights or values; run the stage that writes it again"
                )
            tensor.raw_data = raw
            set_external_data(tensor, self.path.name, *self.places[digest])
            for field in ("raw_data", "float_data", "int32_data", "int64_data"):
                tensor.ClearField(field)
        write_onnx(path, model)


def _large_initializers(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str, bytes]]:
    for tensor in model.graph.initializer:
        raw = tensor.raw_data or onnx.numpy_helper.to_array(tensor).tobytes()
        if len(raw) >= MIN_BYTES:
            yield tensor, sha256(raw).hexdigest(), raw
