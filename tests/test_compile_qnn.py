"""Audit and compile with Qualcomm's compiler, on graphs that take it a second."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper

from kokoro_npu.audit import audit_decoder, audit_graph, audit_placement
from kokoro_npu.compile import CompileSettings, Target, compile_decoder, toolchain
from kokoro_npu.compile.binary import check_binary, model_io, read_binary
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256
from tests.small_graphs import decoder_like, quantize_w8a16

pytestmark = pytest.mark.qnn

SM8650 = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8)
SM8550 = Target("sm8550", "Snapdragon 8 Gen 2", 43, 73, 8)
SETTINGS = CompileSettings(memory_reserve_gib=0.1)


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    if reason := toolchain.missing_reason():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same graph by precision."""
    directory = tmp_path_factory.mktemp("models")
    fp16 = decoder_like(directory / "fp16.onnx")
    return {"fp16": fp16, "w8a16": quantize_w8a16(fp16, directory / "w8a16.onnx")}


@pytest.mark.parametrize("precision", ["w8a16", "fp16"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_binary_for_the_target(models: dict[str, Path], tmp_path: Path, precision: str, level: int) -> None:
    settings = replace(SETTINGS, optimization_level=level)
    report = compile_decoder(models[precision], 1, precision, SM8650, settings, tmp_path / "out")
    assert report["compiled"], report["reason"]
    context, blob = sorted((tmp_path / "out").iterdir())
    assert [context.name, blob.name] == [f"{precision}_ctx.onnx", f"{precision}_ctx_qnn.bin"]
    assert report["binary_bytes"] == blob.stat().st_size
    assert report["peak_rss_bytes"] > 10**7
    info = read_binary(blob)
    assert (info.soc_model, info.htp_arch) == (57, 75)
    assert info.qairt_build == report["qairt"]
    assert info.qairt_build.startswith("v")
    graph = info.graphs[0]
    assert (graph.inputs, graph.outputs) == model_io(models[precision])
    assert (graph.vtcm_mb, graph.optimization_level) == (8, level)
    assert [n.op_type for n in onnx.load(context, load_external_data=False).graph.node] == ["EPContext"]


def test_a_binary_depends_on_the_model_and_not_on_its_place(models: dict[str, Path], tmp_path: Path) -> None:
    found = []
    for place in ("a", "deeper/b"):
        model = tmp_path / place / "m.onnx"
        model.parent.mkdir(parents=True)
        model.write_bytes(models["w8a16"].read_bytes())
        compile_decoder(model, 1, "w8a16", SM8650, SETTINGS, tmp_path / place / "out")
        found.append([sha256(p) for p in sorted((tmp_path / place / "out").iterdir())])
    assert found[0] == found[1]


def test_a_binary_for_another_chip_is_caught(models: dict[str, Path], tmp_path: Path) -> None:
    compile_decoder(models["w8a16"], 1, "w8a16", SM8550, SETTINGS, tmp_path / "out")
    (blob,) = (tmp_path / "out").glob("*.bin")
    with pytest.raises(KokoroNpuError, match="is for soc_model 43, htp_arch 73; sm8650 is soc_model 57"):
        check_binary(read_binary(blob), SM8650, 2, models["w8a16"], blob.name)


def test_the_graphs_vtcm_is_the_one_asked_for(models: dict[str, Path], tmp_path: Path) -> None:
    settings = replace(SETTINGS, options={"vtcm_mb": 4})
    compile_decoder(models["w8a16"], 1, "w8a16", SM8650, settings, tmp_path / "out")
    (blob,) = (tmp_path / "out").glob("*.bin")
    assert read_binary(blob).graphs[0].vtcm_mb == 4


def test_damaged_binaries_are_one_line(models: dict[str, Path], tmp_path: Path) -> None:
    compile_decoder(models["fp16"], 1, "fp16", SM8650, SETTINGS, tmp_path / "out")
    (blob,) = (tmp_path / "out").glob("*.bin")
    data = blob.read_bytes()
    for name, content in {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "junk": bytes(range(256)) * 64,
        "onnx": models["fp16"].read_bytes(),
    }.items():
        path = tmp_path / f"{name}.bin"
        path.write_bytes(content)
        with pytest.raises(KokoroNpuError, match=rf"{name}\.bin: cannot be read back") as caught:
            read_binary(path)
        assert "\n" not in str(caught.value)


def test_every_node_of_both_precisions_is_taken(models: dict[str, Path], tmp_path: Path) -> None:
    report = audit_decoder(models["fp16"], models["w8a16"], 1, "w8a16", SM8650, SETTINGS, tmp_path / "audit")
    assert report["placed"]
    assert report["nodes_on_npu"] == report["nodes"] > report["fp16_nodes"]
    assert report["fp16_nodes_on_npu"] == report["fp16_nodes"] >= report["fp16_file_nodes"] == 28
    assert report["refused"] == report["fp16_refused"] == ""
    assert report["qairt"].startswith("v")
    rows = (tmp_path / "audit" / "quantized_placement.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == report["nodes"] + 1
    # The boundary is the NPU's as well: the quantize of the input, the dequantize of the output.
    assert any(row.startswith("x_QuantizeLinear,QuantizeLinear,npu") for row in rows)
    again = audit_decoder(models["fp16"], models["w8a16"], 1, "w8a16", SM8650, SETTINGS, tmp_path / "again")
    assert again == report
    for path in (tmp_path / "audit").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_audited_placement_is_that_of_the_compile(tmp_path: Path) -> None:
    """A graph of which HTP refuses a node: the audit names it, the compile of the same graph fails."""
    tail = [helper.make_node("Asin", ["pre"], ["angle"], name="phase")]
    model = decoder_like(tmp_path / "asin.onnx", tail, "angle")
    assert {row.op: row.status for row in audit_graph(model).ops}["Asin"] == "not listed"
    placement = audit_placement(model, SM8650, SETTINGS)
    (refused,) = placement.refused
    assert (refused.node, refused.op, refused.placed) == ("phase", "Asin", "cpu")
    assert "ElementWiseAsin" in refused.reason
    assert placement.on_npu == len(placement.nodes) - 1
    with pytest.raises(KokoroNpuError, match="name: phase, type: Asin"):
        compile_decoder(model, 1, "fp16", SM8650, SETTINGS, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_provider_gives_its_own_reason_too(tmp_path: Path) -> None:
    tail = [helper.make_node("Mod", ["pre", "pre"], ["rest"], name="wrap", fmod=1)]
    model = decoder_like(tmp_path / "mod.onnx", tail, "rest")
    (refused,) = audit_placement(model, SM8650, SETTINGS).refused
    assert (refused.node, refused.op) == ("wrap", "Mod")
    assert "fmod == 0" in refused.reason


def test_a_model_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "junk.onnx"
    path.write_bytes(b"junk")
    with pytest.raises(KokoroNpuError, match=r"junk\.onnx: placement for sm8650"):
        audit_placement(path, SM8650, SETTINGS)
