"""The decoder as one file, the form in which the service takes it."""

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]  # no stubs installed

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic

MAX_BYTES = 2**31 - 1
"""Most that a protobuf can hold."""


def merge(onnx_path: Path, target: Path) -> Path:
    """Write the model with its weights inside.

    The decoders of all buckets point into one ``kokoro_decoder.weights``. The service takes a model either as one file
    or as a directory with one ``.onnx`` and one ``.data`` (``qai_hub.client._get_model_dir_type``), so a shared file of
    another name cannot go up as it is. One file also has the same bytes, and so the same key, on every machine; an
    archive of a directory has not.

    Raises:
        KokoroNpuError: the weights are missing, or the model is larger than a protobuf can be.
    """
    try:
        model = onnx.load(str(onnx_path), load_external_data=True)
    except (OSError, ValueError, DecodeError, onnx.checker.ValidationError) as error:
        raise KokoroNpuError(f"{onnx_path}: cannot be read with its weights: {error}") from None
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
    try:
        data = model.SerializeToString(deterministic=True)
    except (ValueError, EncodeError):
        data = b""
    if not 0 < len(data) <= MAX_BYTES:
        raise KokoroNpuError(f"{onnx_path}: with its weights it is larger than the 2 GiB that one ONNX file can hold")
    with atomic(target) as tmp:
        tmp.write_bytes(data)
    return target
