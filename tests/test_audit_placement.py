"""Reasons from the provider's log: the one part of the placement that is text and not data."""

from pathlib import Path
from typing import Any

import pytest

from kokoro_npu.audit.placement import _reasons, audit_placement
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.errors import KokoroNpuError

SM8650 = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8)

# Shortened from onnxruntime-qnn 2.7.0: pass 1 refuses a node that pass 2 takes, and the backend's own refusal
# names the node with a number of its own.
LOG = """\
2026 [V:onnxruntime:, qnn_manager.cc:2154 SetupBackend] Backend build version: v2.51.0.260929181845
2026 [V:onnxruntime:, qnn_ep.cc:2198 GetCapabilityImpl] GetCapability pass 1 (pre-Layout-Transform)
2026 [V:onnxruntime:, qnn_ep.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Conv) :
\tOperator type: Conv Node name: conv Node index: 3
\tREASON : not laid out yet

2026 [V:onnxruntime:, qnn_ep.cc:2198 GetCapabilityImpl] GetCapability pass 2 (post-Layout-Transform)
2026 [V:onnxruntime:, qnn_ep.cc:1713 LogNodeSupport] Validation PASSED for 1 nodes in OrtNodeUnit (Conv) :
\tOperator type: Conv Node name: conv Node index: 3

2026 [W:onnxruntime:, qnn.cc:565 CreateQnnNode] QNN.backendValidateOpConfig() failed for node `phase_7` \
of type `ElementWiseAsin` with error code 3110
2026 [V:onnxruntime:, qnn_ep.cc:1713 LogNodeSupport] Validation FAILED for 3 nodes in OrtNodeUnit (Asin) :
\tOperator type: DequantizeLinear Node name: in_dq Node index: 4
\tOperator type: Asin Node name: phase Node index: 5
\tOperator type: QuantizeLinear Node name: out_q Node index: 6
\tREASON : Failed to add node.

2026 [V:onnxruntime:, qnn_ep.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Mod) :
\tOperator type: Mod Node name: wrap Node index: 7
\tREASON : QNN Mod Op only support fmod == 0 for now.

"""
ASIN = "HTP does not take it as QNN ElementWiseAsin (backend validation error 3110)"


def test_reasons_are_those_of_the_last_pass() -> None:
    assert _reasons(LOG) == {
        "conv": "",
        "in_dq": ASIN,
        "phase": ASIN,
        "out_q": ASIN,
        "wrap": "QNN Mod Op only support fmod == 0 for now.",
    }
    assert _reasons("") == {}


def _answer(monkeypatch: pytest.MonkeyPatch, result: dict[str, Any], log: str, returncode: int = 0) -> None:
    run = toolchain.WorkerRun(result, returncode, log, 1.0, 1)
    monkeypatch.setattr(toolchain, "library_dir", Path)
    monkeypatch.setattr(toolchain, "run_worker", lambda *_args, **_options: run)


def test_where_a_node_goes_is_taken_from_the_data_and_not_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [
        ["wrap", "Mod", "CPUExecutionProvider"],
        ["conv", "Conv", "CPUExecutionProvider"],
        ["phase", "Asin", "QNNExecutionProvider"],
        ["else", "Sin", "CPUExecutionProvider"],
    ]
    _answer(monkeypatch, {"ok": True, "nodes": nodes}, LOG)
    placement = audit_placement(Path("m.onnx"), SM8650, CompileSettings())
    assert placement.qairt_build == "v2.51.0.260929181845"
    assert placement.on_npu == 1
    assert [(n.node, n.reason) for n in placement.refused] == [
        ("conv", "valid alone, but left out of its partition"),
        ("else", "no reason in the compiler's log"),
        ("wrap", "QNN Mod Op only support fmod == 0 for now."),
    ]


def test_a_crash_is_no_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, {}, "", returncode=-11)
    with pytest.raises(KokoroNpuError, match=r"m\.onnx: placement for sm8650: the process died of SIGSEGV"):
        audit_placement(Path("m.onnx"), SM8650, CompileSettings())
