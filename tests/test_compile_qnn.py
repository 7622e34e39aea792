"""Audit and compile with Qualcomm's compiler, on graphs that take it a second."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

from kokoro_npu.audio import metrics
from kokoro_npu.audit.decoder import audit_decoder
from kokoro_npu.audit.ops import audit_graph, op_table, verdict
from kokoro_npu.audit.placement import audit_placement
from kokoro_npu.cli.main import cli
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.binary import check_binary, model_io, read_binary
from kokoro_npu.compile.chips import read_chip
from kokoro_npu.compile.local import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target, provider_options
from kokoro_npu.compile.shared import compile_shared
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, sha256
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.graphs.shared_weights import Pack
from kokoro_npu.host.steps import pad_to_bucket
from kokoro_npu.model.export import export_decoder
from tests.narrow_model import narrow_kmodel, random_features
from tests.small_graphs import decoder_like, quantize_w8a16

pytestmark = pytest.mark.qnn

CHIPS = Path(__file__).resolve().parents[1] / "conf" / "target"
TABLE = Path(__file__).resolve().parents[1] / "kokoro_npu/audit/data/op_table.csv"

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
    report = compile_decoder(models[precision], 1, Spec(precision, SM8650, settings), tmp_path / "out")
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
        compile_decoder(model, 1, Spec("w8a16", SM8650, SETTINGS), tmp_path / place / "out")
        found.append([sha256(p) for p in sorted((tmp_path / place / "out").iterdir())])
    assert found[0] == found[1]


def _decoders(directory: Path, frames: Sequence[int]) -> dict[int, Path]:
    """Narrow decoders that share one file of weights, as those of the build do."""
    kmodel = narrow_kmodel(1, kernels=(3,))
    # Random features are not always as calm as speech: exponents of a thousand times its loudness leave half precision.
    kmodel.decoder.generator.conv_post.weight.data *= 0.3
    models = {size: export_decoder(kmodel, Bucket(size)) for size in frames}
    pack = Pack.write(models[frames[0]], directory / "kokoro_decoder.weights")
    paths = {size: directory / f"kokoro_decoder_{size}.onnx" for size in frames}
    for size, model in models.items():
        pack.save(model, paths[size])
    return paths


def test_two_buckets_share_one_binary(tmp_path: Path) -> None:
    paths = _decoders(tmp_path, (8, 12))
    out = tmp_path / "compiled"
    report = compile_shared(paths, Spec("fp16", SM8650, SETTINGS), out)
    names = ["12", "8", "kokoro_decoder_12_ctx.onnx", "kokoro_decoder_8_ctx.onnx", "kokoro_decoder_qnn.bin"]
    assert sorted(path.name for path in out.iterdir()) == names
    shared = (out / "kokoro_decoder_qnn.bin").stat().st_size
    alone = [
        compile_decoder(path, frames, Spec("fp16", SM8650, SETTINGS), tmp_path / "alone")["binary_bytes"]
        for frames, path in paths.items()
    ]
    assert shared < 0.95 * sum(alone)
    graphs = {graph.name: graph for graph in read_binary(out / "kokoro_decoder_qnn.bin").graphs}
    assert (report["compiled_buckets"], report["binary_bytes"], len(graphs)) == (2, shared, 2)
    for frames in paths:
        names = read_json(out / str(frames) / "bucket.json")
        assert graphs[names["graph"]].inputs["noise"][0] == Bucket(frames).input_shapes["noise"]
        (node,) = onnx.load(out / f"kokoro_decoder_{frames}_ctx.onnx", load_external_data=False).graph.node
        assert {a.name: a.s for a in node.attribute}["ep_cache_context"] == b"kokoro_decoder_qnn.bin"
        assert names == {
            "binary": "kokoro_decoder_qnn.bin",
            "context": f"kokoro_decoder_{frames}_ctx.onnx",
            "graph": names["graph"],
        }


def test_a_report_of_one_binary_for_all(models: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "shared"
    paths = {}
    for frames in (1, 2, 10**6):
        paths[frames] = tmp_path / f"model_{frames}.onnx"
        paths[frames].write_bytes(models["w8a16"].read_bytes())
    report = compile_shared(paths, Spec("w8a16", SM8650, SETTINGS), out)
    assert (report["buckets"], report["compiled_buckets"], report["frames"]) == (3, 2, [1, 2])
    assert report["binary_bytes"] == (out / "kokoro_decoder_qnn.bin").stat().st_size
    assert (report["backend"], report["target"], report["chip"]) == ("qnn-htp-offline", "sm8650", SM8650.chip)
    assert report["seconds"] > 0
    assert report["qairt"].startswith("v")
    assert "long: more than 1000 frames" in (out / "1000000/why.txt").read_text()
    assert read_json(out / "2/bucket.json")["context"] == "model_2_ctx.onnx"


def test_what_a_graph_costs(models: dict[str, Path]) -> None:
    done = CliRunner().invoke(cli, ["qnn-cost", str(models["fp16"]), "--precision", "fp16"])
    assert done.exit_code == 0, done.output
    cost = json.loads(done.stdout[done.stdout.index("{") :])
    assert cost["qnn_ops"] == sum(cost["ops"].values())
    moved = sum(cost["ops"].get(kind, 0) for kind in ("Transpose", "Convert", "Reshape", "Concat"))
    assert 0 < moved <= cost["movement_ops"] < cost["qnn_ops"]
    convolutions = [node for node in onnx.load(models["fp16"]).graph.node if node.op_type == "Conv"]
    assert cost["ops"]["Conv2d"] >= len(convolutions)
    assert (cost["target"], cost["vtcm_mb"], cost["optimization_level"]) == ("sm8650", 8, 2)
    assert cost["memory"]["spill_fill"] >= 0
    assert cost["finalize_seconds"]["Graph Optimizations"] > 0
    assert 0 < cost["gmacs"] < 1


# The emulation cannot load a binary with shared weights again (it dies of SIGSEGV; upstream skips its own tests of that
# on x86), so each graph is run in the process that compiles them, from the context that becomes the binary.
_RUN_SHARED = """if True:
    import json, sys, numpy as np, onnxruntime as ort
    from kokoro_npu.compile.worker import _session_options
    request = json.load(open(sys.argv[1]))
    for number, each in enumerate(request["models"]):
        last = {"ep.stop_share_ep_contexts": "1"} if number + 1 == len(request["models"]) else {}
        entries = {
            "session.disable_cpu_ep_fallback": "1", "ep.context_enable": "1", "ep.context_embed_mode": "0",
            "ep.context_file_path": each["context"], "ep.share_ep_contexts": "1", **last,
        }
        options = _session_options({"provider_options": request["provider_options"], "session_entries": entries})
        session = ort.InferenceSession(each["model"], options, enable_fallback=0)
        np.save(each["result"], session.run(None, dict(np.load(each["inputs"])))[0])
"""


def test_each_graph_of_a_shared_context_computes_its_bucket(tmp_path: Path) -> None:
    paths, truths, models = _decoders(tmp_path, (6, 12)), {}, []
    for frames, path in paths.items():
        inputs = pad_to_bucket(random_features(frames - 1, seed=frames), Bucket(frames))
        truths[frames] = cpu_session(path).run(None, inputs)[0]
        np.savez(tmp_path / f"{frames}.npz", **inputs)  # type: ignore[arg-type]  # arrays by name
        models.append({
            "model": str(path), "context": str(tmp_path / f"{frames}_ctx.onnx"),
            "inputs": str(tmp_path / f"{frames}.npz"), "result": str(tmp_path / f"{frames}.npy"),
        })  # fmt: skip
    options = provider_options(SM8650, SETTINGS)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"models": models, "provider_options": options}), encoding="utf-8")
    subprocess.run([sys.executable, "-c", _RUN_SHARED, str(request)], check=True, timeout=300)
    assert len(list(tmp_path.glob("*.bin"))) == 1
    for frames, truth in truths.items():
        assert metrics.snr_db(truth.reshape(-1), np.load(tmp_path / f"{frames}.npy").reshape(-1)) >= 30


def test_a_binary_for_another_chip_is_caught(models: dict[str, Path], tmp_path: Path) -> None:
    compile_decoder(models["w8a16"], 1, Spec("w8a16", SM8550, SETTINGS), tmp_path / "out")
    (blob,) = (tmp_path / "out").glob("*.bin")
    with pytest.raises(KokoroNpuError, match="is for soc_model 43, htp_arch 73; sm8650 is soc_model 57"):
        check_binary(read_binary(blob), SM8650, 2, models["w8a16"], blob.name)


@pytest.mark.parametrize("chip", sorted(path.stem for path in CHIPS.glob("*.yaml")))
@pytest.mark.parametrize("precision", ["w8a16", "fp16"])
def test_every_chip_of_the_table_compiles(models: dict[str, Path], tmp_path: Path, chip: str, precision: str) -> None:
    target = read_chip(chip, CHIPS)
    report = compile_decoder(models[precision], 1, Spec(precision, target, SETTINGS), tmp_path / "out")
    assert report["compiled"], report["reason"]
    info = read_binary(next((tmp_path / "out").glob("*.bin")))
    assert (info.soc_model, info.htp_arch) == (target.soc_model, target.htp_arch)
    assert info.graphs[0].vtcm_mb == target.vtcm_mb


def test_the_graphs_vtcm_is_the_one_asked_for(models: dict[str, Path], tmp_path: Path) -> None:
    settings = replace(SETTINGS, options={"vtcm_mb": 4})
    compile_decoder(models["w8a16"], 1, Spec("w8a16", SM8650, settings), tmp_path / "out")
    (blob,) = (tmp_path / "out").glob("*.bin")
    assert read_binary(blob).graphs[0].vtcm_mb == 4


def test_damaged_binaries_are_one_line(models: dict[str, Path], tmp_path: Path) -> None:
    compile_decoder(models["fp16"], 1, Spec("fp16", SM8650, SETTINGS), tmp_path / "out")
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
    report = audit_decoder(models["fp16"], models["w8a16"], 1, "w8a16", SM8650, SETTINGS, tmp_path / "audit", TABLE)
    assert report["placed"]
    assert report["nodes_on_npu"] == report["nodes"] > report["fp16_nodes"]
    assert report["fp16_nodes_on_npu"] == report["fp16_nodes"] >= report["fp16_file_nodes"] == 28
    assert report["refused"] == report["fp16_refused"] == ""
    assert report["qairt"].startswith("v")
    rows = (tmp_path / "audit" / "quantized_placement.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == report["nodes"] + 1
    # The boundary is the NPU's as well: the quantize of the input, the dequantize of the output.
    assert any(row.startswith("x_QuantizeLinear,QuantizeLinear,npu") for row in rows)
    again = audit_decoder(models["fp16"], models["w8a16"], 1, "w8a16", SM8650, SETTINGS, tmp_path / "again", TABLE)
    assert again == report
    for path in (tmp_path / "audit").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_audited_placement_is_that_of_the_compile(tmp_path: Path) -> None:
    """A graph of which HTP refuses a node: the audit names it, the compile of the same graph fails."""
    tail = [helper.make_node("Asin", ["pre"], ["angle"], name="phase")]
    model = decoder_like(tmp_path / "asin.onnx", tail, "angle")
    assert audit_graph(model, op_table(TABLE)).ops["Asin"] == 1
    assert verdict("Asin", op_table(TABLE))[0] == "not listed"
    placement = audit_placement(model, SM8650, SETTINGS)
    (refused,) = placement.refused
    assert (refused.node, refused.op, refused.on_npu) == ("phase", "Asin", False)
    assert "ElementWiseAsin" in refused.reason
    assert placement.on_npu == len(placement.nodes) - 1
    with pytest.raises(KokoroNpuError, match="name: phase, type: Asin"):
        compile_decoder(model, 1, Spec("fp16", SM8650, SETTINGS), tmp_path / "out")
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
