"""What an HTP context binary is: chip, QAIRT build and graphs, and whether it is the one that was asked for.

It is read in a child process (:mod:`kokoro_npu.compile.binary_reader`), so that a damaged file cannot take the caller
down.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from kokoro_npu.compile import toolchain
from kokoro_npu.compile.options import Target
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.reading import read_graph

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
    memory: Mapping[str, int]


@dataclass(frozen=True)
class BinaryInfo:
    """A context binary: chip it is for, QAIRT build that made it, and its graphs."""

    soc_model: int
    htp_arch: int
    qairt_build: str
    graphs: tuple[GraphInfo, ...]


def _specs(tensors: dict[str, Any]) -> dict[str, TensorSpec]:
    return {name: (tuple(shape), dtype) for name, (shape, dtype) in tensors.items()}


def read_binary(path: Path) -> BinaryInfo:
    """Chip, build and graphs of a context binary.

    Raises:
        KokoroNpuError: the file is missing, damaged or no context binary.
    """
    if not path.is_file():
        raise KokoroNpuError(f"{path}: no such context binary")
    run = toolchain.run_worker("inspect", {"path": str(path.resolve()), "libraries": str(toolchain.library_dir())})
    found = run.answer(f"{path}: cannot be read back")["binary"]
    graphs = tuple(
        GraphInfo(**graph | {"inputs": _specs(graph["inputs"]), "outputs": _specs(graph["outputs"])})
        for graph in found["graphs"]
    )
    return BinaryInfo(found["soc_model"], found["htp_arch"], found["qairt_build"], graphs)


def model_io(onnx_path: Path) -> tuple[dict[str, TensorSpec], dict[str, TensorSpec]]:
    """Inputs and outputs of an ONNX model, name to shape and dtype; a dimension without value is 0."""
    graph = read_graph(onnx_path).graph
    constants = {tensor.name for tensor in graph.initializer}

    def spec(info: onnx.ValueInfoProto) -> TensorSpec:
        tensor = info.type.tensor_type
        return tuple(d.dim_value for d in tensor.shape.dim), helper.tensor_dtype_to_np_dtype(tensor.elem_type).name

    return (
        {info.name: spec(info) for info in graph.input if info.name not in constants},
        {info.name: spec(info) for info in graph.output},
    )


def check_binary(info: BinaryInfo, target: Target, level: int, onnx_path: Path, where: str) -> None:
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
