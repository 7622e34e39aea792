"""Structure audit: blocking ops, dynamic dimensions, the op table."""

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from kokoro_npu.audit.decoder import audit_decoder
from kokoro_npu.audit.ops import audit_graph, op_table, require_npu_ready, verdict
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.errors import KokoroNpuError
from tests.small_graphs import decoder_like, save_model

TABLE = Path(__file__).resolve().parents[1] / "kokoro_npu/audit/data/op_table.csv"
SM8650 = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8)
BLOCKERS_OF_THE_REQUIREMENTS = {
    "Loop",
    "If",
    "SplitToSequence",
    "SequenceAt",
    "ConcatFromSequence",
    "Scan",
    "SequenceConstruct",
}


def _with_loop(path: Path) -> Path:
    """A model whose Loop sits in the branch of an If: two blocked ops, one of them below the top level."""
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c_in"], ["c_out"], name="again"),
            helper.make_node("Add", ["v_in", "v_in"], ["v_out"], name="double"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_in", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("c_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_out", TensorProto.FLOAT, [2]),
        ],
    )
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])
    then = helper.make_graph(
        [helper.make_node("Loop", ["", "flag", "x"], ["b"], name="expand_durations", body=body)],
        "then",
        [],
        [out],
    )
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"], name="negate")], "else", [], [out])
    node = helper.make_node("If", ["flag"], ["y"], name="choose", then_branch=then, else_branch=other)
    graph = helper.make_graph(
        [node],
        "g",
        [flag, helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def test_decoder_like_graph_is_clean(tmp_path: Path) -> None:
    audit = audit_graph(decoder_like(tmp_path / "m.onnx"), op_table(TABLE))
    assert audit.blocking == ()
    assert audit.dynamic == ()
    assert audit.ops.total() == 28
    assert audit.ops["Mul"] == 6
    assert verdict("Conv", op_table(TABLE)) == ("full", "QNN operator table: fully supported")
    assert verdict("Gelu", op_table(TABLE))[0] == "partial"
    assert {"Expand", "Sin"} <= audit.ops.keys()
    assert verdict("Expand", op_table(TABLE))[0] == "not listed"
    require_npu_ready(audit, tmp_path / "m.onnx")


def test_blocking_ops_are_named_in_subgraphs_too(tmp_path: Path) -> None:
    audit = audit_graph(_with_loop(tmp_path / "loop.onnx"), op_table(TABLE))
    assert audit.blocking == (("choose", "If"), ("choose/expand_durations", "Loop"))
    with pytest.raises(KokoroNpuError, match=r"loop\.onnx.*choose/expand_durations \(Loop\)"):
        require_npu_ready(audit, tmp_path / "loop.onnx")


def test_one_blocking_op_fails_the_audit_of_a_decoder(tmp_path: Path) -> None:
    tail = [
        helper.make_node("RandomNormalLike", ["pre"], ["rn"], name="source_noise"),
        helper.make_node("Add", ["pre", "rn"], ["noisy"], name="add_noise"),
    ]
    bad = decoder_like(tmp_path / "bad.onnx", tail, "noisy")
    good = decoder_like(tmp_path / "good.onnx")
    for models in ((bad, good), (good, bad)):
        with pytest.raises(KokoroNpuError, match=r"bad\.onnx.*source_noise \(RandomNormalLike\)"):
            audit_decoder(*models, 64, "fp16", SM8650, CompileSettings(), tmp_path / "out", TABLE)


def test_dynamic_dimensions_are_followed_through_the_graph(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="n1"),
        helper.make_node("Exp", ["a"], ["y"], name="n2"),
    ]
    path = save_model(tmp_path / "dyn.onnx", nodes, {"x": (1, "time")}, {"y": (1, "time")})
    audit = audit_graph(path, op_table(TABLE))
    assert audit.dynamic == ("x", "a", "y")
    with pytest.raises(KokoroNpuError, match="dimensions that are no integers at x, a, y"):
        require_npu_ready(audit, path)


def test_a_data_dependent_shape_is_dynamic(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Compress", ["x", "keep"], ["a"], name="pick", axis=1),
        helper.make_node("ReduceMean", ["a"], ["y"], name="mean", axes=[1], keepdims=1),
        helper.make_node("Greater", ["z", "z0"], ["keep"], name="select"),
    ]
    order = [nodes[2], nodes[0], nodes[1]]
    path = save_model(tmp_path / "d.onnx", order, {"x": (1, 4), "z": (4,), "z0": (4,)}, {"y": (1, 1)})
    assert audit_graph(path, op_table(TABLE)).dynamic == ("a",)


def test_the_table_holds_the_listed_operators_and_the_blockers_that_the_requirements_search_for() -> None:
    table = op_table(TABLE)
    statuses = [status for status, source in table.values() if source.startswith("QNN operator table: ")]
    assert {s: statuses.count(s) for s in set(statuses)} == {"full": 45, "partial": 5, "blocked": 12}
    assert all(table[op][0] == "blocked" for op in BLOCKERS_OF_THE_REQUIREMENTS)
    assert table["RandomNormal"] == ("blocked", "this project: a random op like those of the table")
    assert table["Where"][0] == "partial"


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("op,status,source\nExp,blocked,ours\n", encoding="utf-8")
    audit = audit_graph(decoder_like(tmp_path / "m.onnx"), op_table(path))
    assert audit.blocking == (("exp1", "Exp"),)
    path.write_text("op,status,source\nExp,maybe,ours\n", encoding="utf-8")
    with pytest.raises(KokoroNpuError, match="'Exp' has status 'maybe'"):
        op_table(path)
    with pytest.raises(KokoroNpuError, match=r"nowhere\.csv: no such op table"):
        op_table(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("content", [b"", b"\x00\xff junk" * 50])
def test_no_model_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "junk.onnx"
    with pytest.raises(KokoroNpuError, match="no such model"):
        audit_graph(path, op_table(TABLE))
    path.write_bytes(content)
    with pytest.raises(KokoroNpuError, match="not an ONNX model"):
        audit_graph(path, op_table(TABLE))


def test_without_the_compiler_the_structure_is_still_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kokoro_npu.compile.toolchain.library_dir", lambda: None)
    model = decoder_like(tmp_path / "m.onnx")
    report = audit_decoder(model, model, 64, "fp16", SM8650, CompileSettings(), tmp_path / "out", TABLE)
    assert report["placed"] is False
    assert "not installed" in report["reason"]
    assert (report["blocking_ops"], report["dynamic_dims"], report["nodes_on_npu"]) == (0, 0, None)
    assert (tmp_path / "out" / "float_ops.csv").is_file()
