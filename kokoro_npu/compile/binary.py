"""What an HTP context binary says of itself, read through ``libQnnSystem.so`` of the onnxruntime-qnn wheel.

Only the few fields needed are read, at the offsets that version 3 of the system library's answer has on a
64-bit machine (found by comparing answers for known binaries; another version is refused rather than
misread). No header of Qualcomm's is used. The library reads the binary in a child process, so that a damaged
file cannot take the caller down.
"""

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from kokoro_npu.compile import toolchain
from kokoro_npu.compile.options import Target
from kokoro_npu.errors import KokoroNpuError

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
_ONNX_DTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
}

TensorSpec = tuple[tuple[int, ...], str]
"""Shape and dtype of one graph input or output."""


@dataclass(frozen=True)
class GraphInfo:
    """One graph of a binary.

    Attributes:
        name: as in the binary.
        inputs: by name.
        outputs: by name.
        vtcm_mb: VTCM as compiled, in MB.
        optimization_level: finalize level as compiled.
        memory: bytes by what they are for: ``spill_fill`` (DDR buffer for what VTCM cannot hold) and, where the
            compiler tells, ``io`` (inputs and outputs), ``op_data`` (the ops and their schedule), ``const``
            (weights), ``ddr_tensors`` and ``shared_weights``.
    """

    name: str
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    vtcm_mb: int
    optimization_level: int
    memory: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BinaryInfo:
    """A context binary: chip it is for, QAIRT build that made it, and its graphs."""

    soc_model: int
    htp_arch: int
    qairt_build: str
    graphs: tuple[GraphInfo, ...]


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


def read_in_process(path: Path) -> dict[str, Any]:
    """Read a binary with the library loaded into this process; for the worker, see :func:`read_binary`.

    Raises:
        RuntimeError: the library cannot read the file, or answers in a layout that is not known here.
    """
    directory = toolchain.library_dir()
    if directory is None:
        raise RuntimeError("onnxruntime-qnn is not installed")
    library = ctypes.CDLL(str(directory / "libQnnSystem.so"))
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


def _specs(tensors: dict[str, Any]) -> dict[str, TensorSpec]:
    return {name: (tuple(shape), dtype) for name, (shape, dtype) in tensors.items()}


def read_binary(path: Path | str) -> BinaryInfo:
    """Chip, build and graphs of a context binary.

    Raises:
        KokoroNpuError: the file is missing, damaged or no context binary.
    """
    path = Path(path)
    if not path.is_file():
        raise KokoroNpuError(f"{path}: no such context binary")
    run = toolchain.run_worker("inspect", {"path": str(path.resolve())})
    found = toolchain.require_result(run, f"{path}: cannot be read back")["binary"]
    graphs = tuple(
        GraphInfo(**graph | {"inputs": _specs(graph["inputs"]), "outputs": _specs(graph["outputs"])})
        for graph in found["graphs"]
    )
    return BinaryInfo(found["soc_model"], found["htp_arch"], found["qairt_build"], graphs)


def model_io(onnx_path: Path | str) -> tuple[dict[str, TensorSpec], dict[str, TensorSpec]]:
    """Inputs and outputs of an ONNX model, name to shape and dtype; a dimension without value is 0."""
    graph = onnx.load(str(onnx_path), load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}

    def spec(info: onnx.ValueInfoProto) -> TensorSpec:
        tensor = info.type.tensor_type
        dtype = _ONNX_DTYPES.get(tensor.elem_type, str(tensor.elem_type))
        return tuple(d.dim_value for d in tensor.shape.dim), dtype

    return (
        {info.name: spec(info) for info in graph.input if info.name not in constants},
        {info.name: spec(info) for info in graph.output},
    )


def check_binary(info: BinaryInfo, target: Target, level: int, onnx_path: Path | str, where: str) -> None:
    """Assert that a binary is the one that was asked for.

    Args:
        info: what the binary says.
        target: the chip asked for.
        level: the finalize level asked for.
        onnx_path: the model it was compiled from, whose inputs and outputs the graph must have.
        where: name of the binary for the message.

    Raises:
        KokoroNpuError: another chip or level, more than one graph, or other inputs or outputs. A binary for
            another chip runs in the emulator without complaint, so nothing else would tell.
    """
    wanted = (target.soc_model, target.htp_arch)
    if (info.soc_model, info.htp_arch) != wanted:
        raise KokoroNpuError(
            f"{where}: is for soc_model {info.soc_model}, htp_arch {info.htp_arch}; "
            f"{target.name} is soc_model {wanted[0]}, htp_arch {wanted[1]}"
        )
    if len(info.graphs) != 1:
        raise KokoroNpuError(f"{where}: holds {len(info.graphs)} graphs instead of one: part of the model was cut off")
    graph = info.graphs[0]
    if graph.optimization_level != level:
        raise KokoroNpuError(f"{where}: was finalized at level {graph.optimization_level} instead of {level}")
    if graph.vtcm_mb > target.vtcm_mb:
        raise KokoroNpuError(f"{where}: asks for {graph.vtcm_mb} MB of VTCM, {target.name} has {target.vtcm_mb}")
    inputs, outputs = model_io(onnx_path)
    for kind, has, wants in (("inputs", graph.inputs, inputs), ("outputs", graph.outputs, outputs)):
        if has != wants:
            differing = sorted(n for n in has.keys() | wants.keys() if has.get(n) != wants.get(n))
            detail = "; ".join(
                f"{n} is {has.get(n, 'missing')}, the model has {wants.get(n, 'none')}" for n in differing
            )
            raise KokoroNpuError(f"{where}: {kind} differ from the model: {detail}")
