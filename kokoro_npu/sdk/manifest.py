"""``manifest.json`` of an SDK bundle: everything that the host must know, and a digest of every file.

``data/manifest.schema.json`` is its published schema (JSON Schema 2020-12).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import onnx

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256
from kokoro_npu.geometry import FRAMES_PER_SECOND, MAX_TOKENS, SAMPLE_RATE, SAMPLES_PER_FRAME, Bucket
from kokoro_npu.host.tokens import BOUNDARY_TOKEN

MANIFEST, DIGEST, SCHEMA = "manifest.json", "manifest.sha256", "manifest.schema.json"
DATA = Path(__file__).parent / "data"
FORMAT_VERSION = 2

CONSTANTS: Mapping[str, Any] = {
    "format": "kokoro-npu-sdk",
    "format_version": FORMAT_VERSION,
    "audio": {
        "sample_rate": SAMPLE_RATE,
        "samples_per_frame": SAMPLES_PER_FRAME,
        "frames_per_second": FRAMES_PER_SECOND,
        "channels": 1,
        "dtype": "float32",
    },
    "host": {
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
    },
}
"""What every manifest says. ``host`` holds the host's rules in words; reference/ holds them as code and test vectors.
T: the bucket's frames, L: real ones."""


def bucket_facts(frames: int, decoder: Path) -> dict[str, Any]:
    """What a manifest says of a bucket's size, and of the inputs and outputs of its decoder."""
    bucket = Bucket(frames)
    return {"frames": frames, "seconds": bucket.seconds, "samples": bucket.samples, **tensors(decoder)}


def tensors(path: Path) -> dict[str, Any]:
    """``inputs`` and ``outputs`` of a model in their order, each with name, dtype and shape (free sizes by name)."""
    graph = onnx.load(path, load_external_data=False).graph
    return {"inputs": [_tensor(value) for value in graph.input], "outputs": [_tensor(value) for value in graph.output]}


def _tensor(value: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    shape = [dim.dim_param if dim.HasField("dim_param") else dim.dim_value for dim in kind.shape.dim]
    return {"name": value.name, "dtype": dtype, "shape": shape}


def digest_line(manifest: Path) -> bytes:
    """What ``manifest.sha256`` holds, in the form that ``sha256sum --check`` reads."""
    return f"{sha256(manifest)}  {manifest.name}\n".encode()


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
    validator = jsonschema.Draft202012Validator(json.loads((DATA / SCHEMA).read_text(encoding="utf-8")))
    error = jsonschema.exceptions.best_match(validator.iter_errors(manifest))
    if error is not None:
        place = ".".join(map(str, error.absolute_path)) or "the top level"
        raise KokoroNpuError(f"{where} does not follow its schema at {place}: {error.message[:300]}")
    for bucket in manifest["buckets"]:
        expected = Bucket(bucket["frames"])
        found = {kind: {item["name"]: tuple(item["shape"]) for item in bucket[kind]} for kind in ("inputs", "outputs")}
        for what, is_, should in (
            ("seconds", bucket["seconds"], expected.seconds),
            ("samples", bucket["samples"], expected.samples),
            ("inputs", found["inputs"], expected.input_shapes),
            ("outputs", found["outputs"], expected.output_shapes),
        ):
            if is_ != should:
                raise KokoroNpuError(f"{where}: {what} of the bucket of {expected.frames} frames: {is_}, not {should}")
    if missing := sorted(_named(manifest) - set(manifest["files"])):
        raise KokoroNpuError(f"{where} names {missing[0]}, which is not among its files")


def _named(manifest: Mapping[str, Any]) -> set[str]:
    """Every path that the manifest names outside its list of files."""
    paths = [manifest["phonemes"], manifest.get("encodings"), *manifest["voices"]["files"].values()]
    paths += [model["path"] for model in manifest["models"].values()]
    for bucket in manifest["buckets"]:
        compiled = bucket["context_binary"] or {}
        paths += [*bucket["decoders"].values(), compiled.get("model"), compiled.get("binary")]
    return {path for path in paths if path}
