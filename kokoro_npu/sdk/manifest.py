"""``manifest.json`` of an SDK bundle: everything that the host must know, and a digest of every file.

``data/manifest.schema.json`` is its published schema (JSON Schema 2020-12).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import onnx

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256
from kokoro_npu.geometry import FRAMES_PER_SECOND, MAX_TOKENS, SAMPLE_RATE, SAMPLES_PER_FRAME, VOICE_DIM, Bucket
from kokoro_npu.host.tokens import BOUNDARY_TOKEN
from kokoro_npu.weights.canonical import VOICE_ROWS

MANIFEST, DIGEST, SCHEMA = "manifest.json", "manifest.sha256", "manifest.schema.json"
FORMAT, FORMAT_VERSION = "kokoro-npu-sdk", 2

HOST = {
    "boundary_token": BOUNDARY_TOKEN,
    "max_phonemes": MAX_TOKENS - 2,
    "tokens": "boundary token, the id of each phoneme, boundary token",
    "voice_row": "number of phonemes - 1",
    "alignment": "repeat each token's features by its duration",
    "bucket": "the smallest with frames >= sum of durations",
    "padding": "zeros right of the real columns; frame_mask is 1 on real frames, else 0",
    "frame_ratio": "r, sqrt(r), 1/sqrt(r) for r = T/L, then for r = (120T+8)/(120L+1)",
    "trim": "the first samples_per_frame * sum of durations",
    "source_noise": "SplitMix64 and Marsaglia's polar method, see reference/KokoroHost.kt",
}
"""The host's rules, in words; reference/ holds them as code and test vectors. T: the bucket's frames, L: real ones."""


@dataclass(frozen=True)
class Entry:
    """One bucket of a bundle.

    Attributes:
        frames: T.
        decoders: precision (``fp32``, ``quantized``) to the path of the ONNX decoder in the bundle.
        context_model: path of the ONNX wrapper of the context binary; empty if there is none.
        context_binary: path of the binary; empty if the bucket is not compiled.
        graph: the bucket's graph in a binary that several buckets share; empty if it holds this bucket alone.
        not_compiled: why not.
    """

    frames: int
    decoders: Mapping[str, str]
    context_model: str = ""
    context_binary: str = ""
    graph: str = ""
    not_compiled: str = ""


def compose(
    root: Path,
    buckets: Sequence[Entry],
    cpu_models: Mapping[str, str],
    voices: Mapping[str, str],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The manifest of a bundle whose other files lie in ``root``.

    Args:
        root: the bundle.
        buckets: its buckets, smallest first.
        cpu_models: ``duration`` and ``prosody`` to their paths in the bundle.
        voices: name to path.
        facts: the keys that no file of the bundle tells: model, precision, target, tools, quality.
    """
    listed = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **facts,
        "audio": {
            "sample_rate": SAMPLE_RATE,
            "samples_per_frame": SAMPLES_PER_FRAME,
            "frames_per_second": FRAMES_PER_SECOND,
            "channels": 1,
            "dtype": "float32",
        },
        "host": HOST,
        "buckets": [_bucket(root, entry) for entry in buckets],
        "models": {name: {"path": path, **tensors(root / path)} for name, path in sorted(cpu_models.items())},
        "voices": {
            "rows": VOICE_ROWS,
            "columns": VOICE_DIM,
            "dtype": "float32",
            "byte_order": "little",
            "files": dict(sorted(voices.items())),
        },
        "phonemes": "phonemes.json",
        "files": {name: {"bytes": (root / name).stat().st_size, "sha256": sha256(root / name)} for name in listed},
    }


def _bucket(root: Path, entry: Entry) -> dict[str, Any]:
    bucket = Bucket(entry.frames)
    compiled = {"model": entry.context_model or None, "binary": entry.context_binary, "graph": entry.graph or None}
    return {
        "frames": bucket.frames,
        "seconds": bucket.seconds,
        "samples": bucket.samples,
        "decoders": dict(sorted(entry.decoders.items())),
        "context_binary": compiled if entry.context_binary else None,
        "not_compiled": entry.not_compiled,
        **tensors(root / next(iter(sorted(entry.decoders.items())))[1]),
    }


def tensors(path: Path) -> dict[str, Any]:
    """``inputs`` and ``outputs`` of a model in their order, each with name, dtype and shape (free sizes by name)."""
    graph = onnx.load(path, load_external_data=False).graph
    return {"inputs": [_tensor(value) for value in graph.input], "outputs": [_tensor(value) for value in graph.output]}


def _tensor(value: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    shape = [dim.dim_param if dim.HasField("dim_param") else dim.dim_value for dim in kind.shape.dim]
    return {"name": value.name, "dtype": dtype, "shape": shape}


def schema_text() -> str:
    """The published schema, as it is copied into every bundle."""
    return files(__package__).joinpath("data", SCHEMA).read_text(encoding="utf-8")


@cache
def _validator() -> Any:
    import json

    schema = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check(manifest: Any, where: str) -> None:
    """Require that a manifest follows the schema, and agrees with itself where a schema cannot say so.

    Raises:
        KokoroNpuError: the first fault and its place.
    """
    if isinstance(manifest, Mapping) and manifest.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        raise KokoroNpuError(
            f"{where} has format version {manifest['format_version']}, this loader reads {FORMAT_VERSION}; "
            "use the version of kokoro-npu that wrote it"
        )
    error = jsonschema.exceptions.best_match(_validator().iter_errors(manifest))
    if error is not None:
        place = ".".join(map(str, error.absolute_path)) or "the top level"
        raise KokoroNpuError(f"{where} does not follow its schema at {place}: {error.message[:300]}")
    for bucket in manifest["buckets"]:
        expected = Bucket(bucket["frames"])
        if (bucket["seconds"], bucket["samples"]) != (expected.seconds, expected.samples):
            raise KokoroNpuError(
                f"{where}: the bucket of {expected.frames} frames holds {expected.seconds:g} s and {expected.samples} "
                f"samples, not {bucket['seconds']:g} s and {bucket['samples']}"
            )
        for kind, shapes in (("inputs", expected.input_shapes), ("outputs", expected.output_shapes)):
            found = {tensor["name"]: tuple(tensor["shape"]) for tensor in bucket[kind]}
            if found != shapes:
                raise KokoroNpuError(f"{where}: {kind} of the bucket of {expected.frames} frames are not those of it")
    if missing := sorted(referenced(manifest) - set(manifest["files"])):
        raise KokoroNpuError(f"{where} names {missing[0]}, which is not among its files")


def referenced(manifest: Mapping[str, Any]) -> set[str]:
    """Every path that the manifest names outside its list of files."""
    paths = {manifest["phonemes"], *manifest["voices"]["files"].values()}
    paths |= {model["path"] for model in manifest["models"].values()}
    for bucket in manifest["buckets"]:
        compiled = bucket["context_binary"] or {}
        paths |= set(bucket["decoders"].values()) | {compiled[key] for key in ("model", "binary") if compiled.get(key)}
    return paths | {manifest.get("encodings", manifest["phonemes"])}
