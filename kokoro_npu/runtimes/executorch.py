"""ExecuTorch: torch modules to ``.pte`` programs that run on XNNPACK.

Quirks, all kept here: without XNNPACK's partitioner a program runs on the portable kernels, about a hundred times
slower; inputs go by position; the thread pool is the process's; the QNN backend needs an SDK that no package index has.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kokoro_npu.build import places
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import atomic
from kokoro_npu.geometry import Array
from kokoro_npu.runtimes.compare import DecoderCase, Judged, Runtime, compare, prefixed
from kokoro_npu.runtimes.extras import require
from kokoro_npu.runtimes.measure import Loader, Run, kinds

EXTRA = "executorch"


def convert(module: nn.Module, inputs: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Convert a module to a program that hands to XNNPACK whatever XNNPACK takes.

    Args:
        module: in eval mode.
        inputs: example inputs by name, in the order of ``forward``.
        path: the ``.pte`` to write.

    Returns:
        Flat report: ``ops``, ``ops_accelerated`` (inside XNNPACK's partitions), ``partitions``, and ``op_kinds`` that
        are left to the portable kernels.

    Raises:
        KokoroNpuError: the extra is missing, or ExecuTorch takes no such op (named).
    """
    require(EXTRA)
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.devtools.backend_debug import get_delegation_info
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.dialects.edge._ops import EdgeOpOverload
    from torch._export.verifier import SpecViolationError  # what executorch raises; it has no class of its own

    with torch.no_grad():
        exported = torch.export.export(module, tuple(inputs.values()))
        try:
            edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        except SpecViolationError as error:
            op = re.search(r"Operator torch\._ops\.(\S+)", str(error))
            name = op[1] if op else error
            raise KokoroNpuError(f"ExecuTorch takes no op {name}: write it with ops of Core ATen") from error
        graph = edge.exported_program().graph_module
        summary = get_delegation_info(graph)
        calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        program = edge.to_executorch()
    with atomic(path) as tmp, open(tmp, "wb") as stream:
        program.write_to_file(stream)
    return {
        "ops": summary.num_delegated_nodes + summary.num_non_delegated_nodes,
        "ops_accelerated": summary.num_delegated_nodes,
        "partitions": summary.num_delegated_subgraphs,
        "op_kinds": kinds(call.name() for call in calls if isinstance(call, EdgeOpOverload)),
    }


def _load(path: Path, threads: int) -> Run:
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
    from executorch.runtime import Runtime as ExecuTorch

    _unsafe_reset_threadpool(threads)
    program = ExecuTorch.get().load_program(path)
    method = program.load_method("forward")
    assert method is not None

    def run(inputs: dict[str, Array]) -> Array:
        (audio,) = method.execute([torch.from_numpy(value) for value in inputs.values()])
        return audio.numpy()

    return run


LOADER = Loader(_load, ("torch", "executorch.runtime"))
"""ExecuTorch's runtime."""


def _export(case: DecoderCase, directory: Path) -> Judged:
    path = places.decoder(directory, case.bucket.frames, ".pte")
    facts = convert(case.module, case.example, path)
    table, report = compare({"fp32": path}, LOADER, case)
    return table, report | prefixed("fp32", facts)


RUNTIME = Runtime("executorch", ("executorch",), _export)
