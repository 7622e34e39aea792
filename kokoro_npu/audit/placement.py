"""Which nodes Qualcomm's compiler takes, without finalizing anything.

ONNX Runtime asks the QNN provider which nodes it can run (GetCapability), and for each the provider asks the HTP
backend to validate the op. Only then is the graph composed and finalized, which at 1800 frames takes many gigabytes.
With ``dump_qnn_ir_dlc=1`` validation is still HTP's own (``skip_backend_op_validation=0``; with 1 refused ops pass),
but the graph is written to a DLC file instead of being finalized. For every graph tried with onnxruntime-qnn 2.7.0 it
placed each node as the real compile did, it does not depend on the chip, and the session ends well, so that
``get_provider_graph_assignment_info()`` gives the placement as data. Only the reasons for refused nodes come from the
log; a reason that is not found there is said so, and changes no count.

Two limits. Validation does not know the chip: float ops pass for a chip without half precision, and fail when
finalized. And a placed node can still be refused by the finalize step (memory, widths): that is what the compile stage
tells.
"""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kokoro_npu.compile import toolchain
from kokoro_npu.compile.options import CompileSettings, Target, provider_options

_PROVIDER = "QNNExecutionProvider"
_NO_REASON = "no reason in the compiler's log"
_LEFT_OUT = "valid alone, but left out of its partition"

_SECOND_PASS = "GetCapability pass 2"
# The verdict on a node and the Q/DQ around it; the backend's own refusals stand before it.
_VERDICT = re.compile(
    r"Validation (?P<verdict>PASSED|FAILED) for .*:\n(?P<nodes>(?:\tOperator type: .*\n)+)"
    r"(?:\tREASON : (?P<reason>.*))?"
)
_VERDICT_NODE = re.compile(r"\tOperator type: .* Node name: (?P<name>.*) Node index: \d+")
_BACKEND_REFUSAL = re.compile(
    r"QNN\.backendValidateOpConfig\(\) failed for node `[^`]*` of type `(?P<type>[^`]*)` "
    r"with error code (?P<code>\d+)"
)
_BUILD = re.compile(r"Backend build version: (?P<build>v[\d.]+)")


@dataclass(frozen=True)
class PlacedNode:
    """One node of the partition-time graph.

    Attributes:
        node: its name; ONNX Runtime adds ``_token_<n>`` where it rewrote a node for the layout.
        op: its type.
        reason: why it is not on the NPU; empty when it is.
    """

    node: str
    op: str
    reason: str

    @property
    def on_npu(self) -> bool:
        """Whether the NPU takes it."""
        return not self.reason


@dataclass(frozen=True)
class Placement:
    """Placement of a whole graph.

    The nodes are those of the graph that ONNX Runtime hands to the provider for good: after constant folding and the
    layout change to channels-last, with the Transposes and Q/DQ copies these added, the boundary Q/DQ included.

    Attributes:
        nodes: sorted by name.
        qairt_build: build of the backend that judged.
    """

    nodes: tuple[PlacedNode, ...]
    qairt_build: str

    @property
    def on_npu(self) -> int:
        """How many nodes the NPU takes."""
        return sum(node.on_npu for node in self.nodes)

    @property
    def refused(self) -> tuple[PlacedNode, ...]:
        """The nodes it does not take."""
        return tuple(node for node in self.nodes if not node.on_npu)


def _reasons(log: str) -> dict[str, str]:
    """Node name to the reason why it was refused, or to an empty text where it was found valid.

    Of the log's several passes the last, which decides, is read.
    """
    _, found, last = log.rpartition(_SECOND_PASS)
    text, start = (last if found else log), 0
    reasons: dict[str, str] = {}
    for verdict in _VERDICT.finditer(text):
        reason = ""
        if verdict["verdict"] == "FAILED":
            # By position: the provider numbers the QNN node's name anew in every pass.
            refusals = list(_BACKEND_REFUSAL.finditer(text, start, verdict.start()))
            reason = (
                f"HTP does not take it as QNN {refusals[-1]['type']} (backend validation error {refusals[-1]['code']})"
                if refusals
                else (verdict["reason"] or _NO_REASON).strip()
            )
        reasons.update((node["name"], reason) for node in _VERDICT_NODE.finditer(verdict["nodes"]))
        start = verdict.end()
    return reasons


def audit_placement(onnx_path: Path, target: Target, settings: CompileSettings) -> Placement:
    """Which nodes HTP takes, and why not the others; a bucket of any size can be asked about.

    Args:
        onnx_path: float model (judged in half precision) or QDQ model, with static shapes.
        target: the chip.
        settings: the same level and options as the compile.

    Raises:
        KokoroNpuError: the session fails before placement (e.g. the model does not load).
    """
    onnx_path = onnx_path.resolve()
    directory = toolchain.library_dir()
    assert directory is not None  # missing_reason() was None
    with tempfile.TemporaryDirectory(prefix="kokoro-dlc-") as scratch:
        options = provider_options(target, settings) | {
            "dump_qnn_ir_dlc": "1",
            "dump_qnn_ir_dlc_dir": scratch,
            "qnn_ir_backend_path": str(directory / "libQnnIr.so"),
            "skip_backend_op_validation": "0",
        }
        run = toolchain.run_worker(
            "placement",
            {
                "model": onnx_path.name,
                "provider_options": options,
                # No disable_cpu_ep_fallback: the session must outlive a refused node to tell where each went.
                "session_entries": {"session.record_ep_graph_assignment_info": "1"},
                "log_severity": 0,
            },
            cwd=onnx_path.parent,
            describe=f"place {onnx_path.name}",
        )
    result = run.answer(f"{onnx_path.name}: placement for {target.name}")
    reasons = _reasons(run.log)
    nodes = tuple(
        PlacedNode(name, op, "" if provider == _PROVIDER else reasons.get(name, _NO_REASON) or _LEFT_OUT)
        for name, op, provider in sorted(result["nodes"])
    )
    build = _BUILD.search(run.log)
    return Placement(nodes, build["build"] if build else "")
