"""Counts, differences and size estimates of graphs that were counted by hand, and the commands that print them."""

import csv
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from kokoro_npu.cli.main import cli
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.counting import NAME, OP, OP_DTYPE, count, file_sizes
from kokoro_npu.graphs.reading import external_files, read_graph, read_model
from kokoro_npu.quantize.storage import FP16, INT8
from kokoro_npu.sensitivity.estimate import AS_STORED, SizeThresholds, estimate_size
from kokoro_npu.sensitivity.table import read_sensitivities

F32, U8 = np.float32, np.uint8
MIXED = np.ones((4, 8), F32)


def _save(path: Path, quantized: bool = False, split: bool = False) -> Path:
    """Two convolutions that share an 8 x 8 x 3 weight, and a 4 x 8 product; quantized: the weight is uint8."""
    weight = "w_dequantized" if quantized else "w"
    nodes = [
        helper.make_node("Conv", ["x", weight, "b"], ["c1"], name="/body/one/Conv", pads=[1, 1]),
        helper.make_node("Conv", ["c1", weight], ["c2"], name="/body/two/Conv", pads=[1, 1]),
        helper.make_node("Sin", ["c2"], ["s"], name="/body/two/Sin"),
        helper.make_node("Constant", [], ["m"], name="/head/Constant", value=numpy_helper.from_array(MIXED)),
        helper.make_node("MatMul", ["m", "s"], ["y"], name="/head/MatMul"),
    ]  # fmt: skip
    tensors = {"b": np.zeros(8, F32)}
    if quantized:
        nodes.insert(0, helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w_dequantized"], name="/dq"))
        tensors |= {"q": np.ones((8, 8, 3), U8), "scale": np.array(0.1, F32), "zero": np.array(0, U8)}
    else:
        tensors |= {"w": np.ones((8, 8, 3), F32)}
    graph = helper.make_graph(
        nodes,
        "counted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 16])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path), save_as_external_data=split, location="weights.bin", size_threshold=512)
    return path


def _counted(path: Path, by: str, **options: object) -> dict[str, tuple[int, int, int]]:
    return {r.group: (r.nodes, r.parameters, r.bytes) for r in count(path, by, **options)}  # type: ignore[arg-type]


@pytest.mark.parametrize("split", [False, True])
def test_a_shared_weight_counts_once_wherever_it_lies(tmp_path: Path, split: bool) -> None:
    path = _save(tmp_path / "m.onnx", split=split)
    assert _counted(path, OP) == {
        "Conv": (2, 8 * 8 * 3 + 8, 4 * (8 * 8 * 3 + 8)),
        "Sin": (1, 0, 0),
        "Constant": (1, 0, 0),
        "MatMul": (1, 32, 128),
    }


def test_the_weights_file_is_not_needed_to_count_but_to_load(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", split=True)
    assert external_files(read_graph(path)) == ["weights.bin"]
    sizes = {"m.onnx": path.stat().st_size, "weights.bin": (tmp_path / "weights.bin").stat().st_size}
    assert file_sizes(path) == sizes
    before = _counted(path, OP)
    (tmp_path / "weights.bin").unlink()
    assert _counted(path, OP) == before
    assert file_sizes(path) == sizes | {"weights.bin": None}
    with pytest.raises(KokoroNpuError, match=r"m\.onnx: its weights cannot be read"):
        read_model(path)


def test_a_dequantized_weight_belongs_to_the_node_that_computes_with_it(tmp_path: Path) -> None:
    rows = _counted(_save(tmp_path / "m.onnx", quantized=True), OP_DTYPE)
    assert rows["Conv (UINT8)"] == (2, 193, 193)  # the weight and its zero point
    assert rows["Conv (FP32)"] == (0, 9, 36)  # the bias and the scale
    # The node itself uses the scale's type in what it gives; nothing is stored for it.
    assert rows["DequantizeLinear (FP32)"] == (1, 0, 0)
    assert rows["Sin (FP32)"] == (1, 0, 0)


def test_by_name_and_prefix(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx")
    assert _counted(path, NAME, depth=1) == {"/body": (3, 200, 800), "/head": (2, 32, 128)}
    assert {group: row[0] for group, row in _counted(path, NAME, depth=2).items()} == {
        "/body/one": 1,
        "/body/two": 2,
        "/head": 2,
    }
    assert _counted(path, OP, prefix="/head") == {"Constant": (1, 0, 0), "MatMul": (1, 32, 128)}
    with pytest.raises(KokoroNpuError, match=r"no node's name begins with '/hed'; did you mean /head\?"):
        count(path, OP, prefix="/hed")


def test_nodes_inside_a_subgraph_and_unused_weights_count(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "k"], ["z"], name="inner")],
        "body",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, F32), "k")],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body, else_branch=body)],
        "outer",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(5, np.int8), "left_over")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(tmp_path / "if.onnx"))
    assert _counted(tmp_path / "if.onnx", OP) == {
        "If": (1, 0, 0),
        "Add": (2, 2, 8),
        "(unused) (INT8)": (0, 5, 5),
    }


def test_four_bits_are_half_a_byte(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s"], ["d"]),
            helper.make_node("Add", ["x", "d"], ["y"]),
        ],
        "nibbles",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [
            helper.make_tensor("q", TensorProto.INT4, [3], [1, -2, 3]),
            numpy_helper.from_array(np.array(1, F32), "s"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), str(tmp_path / "m.onnx"))
    assert _counted(tmp_path / "m.onnx", OP_DTYPE)["Add (INT4)"] == (1, 3, 2)


def test_difference(tmp_path: Path) -> None:
    before, after = _save(tmp_path / "a.onnx"), _save(tmp_path / "b.onnx", quantized=True)
    for old, new, added in ((before, after, True), (after, before, False)):
        cells = [line.split() for line in _run("diff", old, new).output.splitlines() if line.strip()]
        # The line stands under its own title, and nowhere else.
        at = cells.index(["DequantizeLinear", "1"])
        assert (cells.index(["Added"]) < at < cells.index(["Removed"])) == added
        assert cells.count(["DequantizeLinear", "1"]) == 1
        assert ["Nodes", *(("5", "6", "+1") if added else ("6", "5", "-1"))] in cells


# --- estimate-size ---


def _table(path: Path, distances: dict[str, tuple[float, float]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["name", "op_type", "mel_distance", "snr_db", "params", "size"])
        writer.writerows((name, "Conv", mel, snr, 192, 768) for name, (mel, snr) in distances.items())
    return path


TABLE = {"/body/one/Conv": (0.1, 40.0), "/body/two/Conv": (0.5, 35.0), "/head/MatMul": (0.05, 5.0)}


@pytest.mark.parametrize(
    ("thresholds", "saved", "nodes"),
    [
        # Both convolutions must be int8 for their one weight to be: 192 values and 8 scales of 4 bytes. The product
        # has its matrix on the left: 4 rows, a scale each.
        (SizeThresholds(1.0), 768 - 192 - 32 + 128 - 32 - 16, {INT8: 3}),
        # The second convolution stays, and with it the weight that both use.
        (SizeThresholds(0.2), 128 - 32 - 16, {INT8: 2, AS_STORED: 1}),
        # fp16 is the wider of int8 and fp16; the bias is one node's alone, which is int8 and keeps it.
        (SizeThresholds(0.2, fp16=1.0), 768 // 2 + 128 - 32 - 16, {INT8: 2, FP16: 1}),
        (SizeThresholds(-1.0, fp16=1.0), 768 // 2 + 16 + 64, {FP16: 3}),
        (SizeThresholds(1.0, min_snr_db=20.0), 768 - 192 - 32, {INT8: 2, AS_STORED: 1}),
        (SizeThresholds(1.0, exclude="head"), 768 - 192 - 32, {INT8: 2, AS_STORED: 1}),
        (SizeThresholds(-1.0), 0, {AS_STORED: 3}),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_estimated_bytes(
    tmp_path: Path, thresholds: SizeThresholds, saved: int, nodes: dict[str, int], split: bool
) -> None:
    path = _save(tmp_path / "m.onnx", split=split)
    table = read_sensitivities(_table(tmp_path / "table.csv", TABLE))
    found = estimate_size([path], table, thresholds)
    assert found.before - found.after == saved
    assert found.before == sum(file.stat().st_size for file in tmp_path.iterdir() if file.suffix != ".csv")
    assert found.nodes == nodes
    # Two buckets that share their weight file hold its weights once.
    if split:
        (tmp_path / "n.onnx").write_bytes(path.read_bytes())
        twice = estimate_size([path, tmp_path / "n.onnx"], table, thresholds)
        assert twice.before == found.before + path.stat().st_size


def test_a_distance_that_is_no_number_narrows_nothing(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx")
    table = read_sensitivities(_table(tmp_path / "table.csv", {"/head/MatMul": (math.nan, 50.0)}))
    assert estimate_size([path], table, SizeThresholds(10.0, fp16=10.0)).nodes == {AS_STORED: 1}


# --- The commands ---


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_count_prints_sizes_and_totals(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", quantized=True, split=True)
    lines = _run("count", path, "--size", "--by", "op+dtype", "--max-rows", 1).output.splitlines()
    cells = [line.split() for line in lines if line.split()]
    assert ["Conv", "(UINT8)", "0.19", f"{193 / 357:.1%}", "193"] in cells
    assert ["...", "and", "2", "more", "0.16", f"{164 / 357:.1%}", "41"] in cells
    assert ["Total", "0.35", "100.0%", "234"] in cells


def test_the_commands_print_what_the_library_counts(tmp_path: Path) -> None:
    before = _save(tmp_path / "a.onnx")
    assert ["Conv", "2", "40.0%"] in [line.split() for line in _run("count", before).output.splitlines()]
    table = _table(tmp_path / "table.csv", TABLE)
    output = _run("estimate-size", before, "--sensitivity", table, "--quant-threshold", 1).output
    cells = [line.split() for line in output.splitlines()]
    assert ["int8", "3", "0.00", "0.00"] in cells
    size = before.stat().st_size
    assert f"Size reduction: {(768 - 192 - 32 + 128 - 32 - 16) / size:.1%}" in output


ESTIMATE = ["estimate-size", "m.onnx", "--quant-threshold", "1", "--sensitivity"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["count", "no.onnx"], "no.onnx: no such model"),
        (["count", "text.onnx"], "text.onnx: not an ONNX model"),
        (["count", "empty.onnx"], "empty.onnx: not an ONNX model, or one without nodes"),
        (["count", "."], ".: cannot be read"),
        (["count", "m.onnx", "--by", "name+"], "cannot count by 'name+'; did you mean name?"),
        (["diff", "m.onnx", "text.onnx"], "text.onnx: not an ONNX model"),
        ([*ESTIMATE, "no.csv"], "no.csv: No such file"),
        ([*ESTIMATE, "text.csv"], "text.csv, line 2: 'name'"),
        ([*ESTIMATE, "bad.csv"], "bad.csv, line 2: could not"),
        (
            [*ESTIMATE, "other.csv"],
            "/head/MatMull of the table is no node of m.onnx; did you mean /head/MatMul",
        ),
        (
            [*ESTIMATE, "good.csv", "--exclude", "("],
            "'(' is not a regular expression",
        ),
        (["verify", "text.onnx", "--text", "a", "--voice", "x"], "text.onnx: not an ONNX model"),
        (["verify", "m.onnx", "--voice", "x"], "give either --text or --phonemes"),
        (["verify", "m.onnx", "--text", "a", "--voice", "x", "--weights", "nowhere"], "nowhere holds no model.safe"),
    ],
)  # fmt: skip
def test_bad_files_and_names_get_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _save(tmp_path / "m.onnx")
    (tmp_path / "text.onnx").write_text("this is no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.csv").write_text("a,b\n1,2\n")
    _table(tmp_path / "good.csv", TABLE)
    _table(tmp_path / "other.csv", {"/head/MatMull": (0.0, 1.0)})
    (tmp_path / "bad.csv").write_text("name,op_type,mel_distance,snr_db,params,size\n/head/MatMul,MatMul,loud,1,2,3\n")
    result = _run(*arguments)
    assert isinstance(result.exception, KokoroNpuError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
