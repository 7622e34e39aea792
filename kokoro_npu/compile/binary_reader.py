"""Reads an HTP context binary through ``libQnnSystem.so`` of the onnxruntime-qnn wheel, in the worker process.

Only the few fields needed are read, at the offsets that version 3 of the system library's answer has on a 64-bit
machine (found by comparing answers for known binaries; another version is refused rather than misread). No header of
Qualcomm's is used.
"""

import ctypes
import struct
from pathlib import Path
from typing import Any

_INFO_VERSION = 3
_GRAPH_VERSION = 3
_MEMORY_VERSION = 2
_MEMORY_BYTES = 112  # of the block that holds version 2 of the memory figures
_GRAPH_BYTES = 88
_TENSOR_BYTES = 144
_DTYPES = {
    0x0008: "int8", 0x0016: "int16", 0x0032: "int32", 0x0064: "int64",
    0x0108: "uint8", 0x0116: "uint16", 0x0132: "uint32", 0x0164: "uint64",
    0x0216: "float16", 0x0232: "float32", 0x0308: "sfixed8", 0x0316: "sfixed16",
    0x0408: "ufixed8", 0x0416: "ufixed16", 0x0508: "bool",
}  # fmt: skip


def _u32(address: int) -> int:
    return int(struct.unpack("<I", ctypes.string_at(address, 4))[0])


def _pointer(address: int) -> int:
    return int(struct.unpack("<Q", ctypes.string_at(address, 8))[0])


def _text(address: int) -> str:
    start = _pointer(address)
    return ctypes.string_at(start).decode("utf-8", "replace") if start else ""


def _tensors(count: int, base: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index in range(count):
        tensor = base + index * _TENSOR_BYTES
        rank, dims = _u32(tensor + 80), _pointer(tensor + 88)
        shape = list(struct.unpack(f"<{rank}I", ctypes.string_at(dims, 4 * rank)))
        dtype = _u32(tensor + 32)
        found[_text(tensor + 16)] = [shape, _DTYPES.get(dtype, hex(dtype))]
    return found


def _memory(details: int, size: int) -> dict[str, int]:
    found = {"spill_fill": _pointer(details + 8)}
    if size >= _MEMORY_BYTES and _u32(details + 40) == _MEMORY_VERSION:
        for index, name in enumerate(("io", "op_data", "const", "ddr_tensors", "shared_weights")):
            found[name] = _pointer(details + 72 + 8 * index)
    return found


def _graph(base: int) -> dict[str, Any]:
    if _u32(base) != _GRAPH_VERSION:
        raise RuntimeError(f"graph info of version {_u32(base)} is not known to this reader")
    details = _pointer(base + 72)
    return {
        "name": _text(base + 8),
        "inputs": _tensors(_u32(base + 16), _pointer(base + 24)),
        "outputs": _tensors(_u32(base + 32), _pointer(base + 40)),
        "vtcm_mb": _u32(details + 16) >> 20,
        "optimization_level": _u32(details + 20),
        "memory": _memory(details, _u32(base + 64)),
    }


def read_in_process(path: Path, libraries: Path) -> dict[str, Any]:
    """Read a binary with the library loaded into this process, which a damaged file can take down.

    Args:
        path: the binary.
        libraries: directory of ``libQnnSystem.so``.

    Returns:
        The fields of :class:`kokoro_npu.compile.binary.BinaryInfo`, JSON-able.

    Raises:
        RuntimeError: the library cannot read the file, or answers in a layout that is not known here.
    """
    library = ctypes.CDLL(str(libraries / "libQnnSystem.so"))
    providers, count = ctypes.c_void_p(), ctypes.c_uint32()
    get_providers = library.QnnSystemInterface_getProviders
    get_providers.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint32)]
    get_providers.restype = ctypes.c_uint64
    if get_providers(ctypes.byref(providers), ctypes.byref(count)) or not count.value or not providers.value:
        raise RuntimeError("libQnnSystem.so offers no interface")
    table = _pointer(providers.value) + 32  # after id, name and version
    handle, answer = ctypes.c_void_p(), ctypes.c_void_p()
    create = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p))(_pointer(table))
    get_metadata = ctypes.CFUNCTYPE(
        ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)
    )(_pointer(table + 16))
    free = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(_pointer(table + 24))
    data = path.read_bytes()
    if create(ctypes.byref(handle)):
        raise RuntimeError("libQnnSystem.so cannot create a reader")
    try:
        status = get_metadata(
            handle, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data), ctypes.byref(answer)
        )
        if status or not answer.value:
            raise RuntimeError(f"not a readable QNN context binary (QNN error {status})")
        info = answer.value
        if _u32(info) != _INFO_VERSION:
            raise RuntimeError(f"binary info of version {_u32(info)} is not known to this reader")
        graphs = [_graph(_pointer(info + 104) + _GRAPH_BYTES * index) for index in range(_u32(info + 96))]
        return {
            "qairt_build": _text(info + 16),
            "htp_arch": _u32(_pointer(info + 128) + 4),
            "soc_model": _u32(info + 136),
            "graphs": graphs,
        }
    finally:
        free(handle)
