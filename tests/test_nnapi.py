"""What the usability checker counts, and what it does not look at, on graphs that were counted by hand."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.runtimes.nnapi import unseen, usability
from tests.small_graphs import decoder_like, quantize_w8a16, save_model


def _conv(path: Path, rank: int) -> Path:
    """Conv, Cos, Conv, Relu: NNAPI's table has no Cos, so two parts."""
    shape = (1, 4, *[8] * (rank - 2))
    weight = np.ones((4, 4, *[1] * (rank - 2)), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one"),
        helper.make_node("Cos", ["a"], ["b"], name="cos"),
        helper.make_node("Conv", ["b", "w"], ["c"], name="two"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    return save_model(path, nodes, {"x": shape}, {"y": shape}, {"w": weight})


@pytest.mark.parametrize("rank", [3, 4])
def test_the_checker_counts_types_and_not_ranks(tmp_path: Path, rank: int) -> None:
    path = _conv(tmp_path / "m.onnx", rank)
    found = usability(path)
    assert found["unsupported_ops"] == "Cos"
    # The runtime's own optimizer may fuse the Relu into its convolution.
    assert found["nodes"] - found["nodes_supported"] == found["nodes_unsupported_by_op"] == 1
    assert (found["partitions"], found["verdict"]) == (2, "NO" if found["nodes"] < 5 else "MAYBE")
    assert unseen(path) == {
        "convolutions": 2,
        "convolutions_not_2d": 2 if rank == 3 else 0,
        "convolutions_float": 2,
        "tensors_above_rank_4": 0,
    }


def test_quantized_convolutions_are_seen(tmp_path: Path) -> None:
    path = quantize_w8a16(decoder_like(tmp_path / "float.onnx"), tmp_path / "quantized.onnx")
    found = unseen(path)
    assert (found["convolutions"], found["convolutions_float"], found["convolutions_not_2d"]) == (3, 0, 0)


def test_a_dynamic_shape_is_not_supported(tmp_path: Path) -> None:
    model = onnx.load(_conv(tmp_path / "m.onnx", 4))
    for info in (model.graph.input[0], model.graph.output[0]):
        info.type.tensor_type.shape.dim[3].dim_param = "width"
    onnx.save(model, str(tmp_path / "dynamic.onnx"))
    found = usability(tmp_path / "dynamic.onnx")
    assert found["nodes_supported"] == found["partitions"] == 0
    assert found["nodes_unsupported_by_shape"] == found["nodes"]


def test_no_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("no")
    with pytest.raises(KokoroNpuError, match="not an ONNX model"):
        usability(tmp_path / "m.onnx")
