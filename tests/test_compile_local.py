"""Local compile backend without the compiler: what is not attempted, and how a failure is told."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from onnx import helper

from kokoro_npu.compile import memory, toolchain
from kokoro_npu.compile.backends import BACKENDS, compile_decoder, compile_decoders
from kokoro_npu.compile.binary import BinaryInfo, GraphInfo, check_binary, read_binary
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.compile.shared import compile_shared
from kokoro_npu.errors import KokoroNpuError
from tests.small_graphs import INPUTS, WIDTH, decoder_like, save_model

SM8650 = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8)
SETTINGS = CompileSettings()
SPEC = Spec("w8a16", SM8650, SETTINGS)
GIB = 2**30


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return decoder_like(tmp_path / "decoder.onnx")


def _no_worker(*args: object, **options: object) -> toolchain.WorkerRun:
    raise AssertionError(f"a worker was started: {args} {options}")


def _replace_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Let the child run ``code`` instead of the worker; ``answer`` writes what the worker would report."""
    answer = (
        "import json, os, signal, sys, time\n"
        "request = json.load(open(sys.argv[1]))\n"
        "def answer(**values): json.dump(values, open(request['result'], 'w'))\n"
    )
    monkeypatch.setattr(toolchain, "_ENTRY", answer + code)
    monkeypatch.setattr(toolchain, "library_dir", lambda: tmp_path)
    monkeypatch.setattr(toolchain, "missing_reason", lambda: None)


@pytest.mark.parametrize(
    ("frames", "precision", "settings"),
    [
        (120, "w8a16", SETTINGS),
        (400, "w8a16", replace(SETTINGS, graph_splitting=True)),
        (400, "w8a8", SETTINGS),
        (552, "w8a16", replace(SETTINGS, optimization_level=1)),
        (120, "fp16", replace(SETTINGS, optimization_level=3)),
    ],
)
def test_estimates_cover_the_measured_points_and_grow(frames: int, precision: str, settings: CompileSettings) -> None:
    estimate = memory.estimate_bytes(frames, precision, settings)
    for point in memory.MEMORY_POINTS:
        same = (point.optimization_level, point.graph_splitting) == (
            settings.optimization_level,
            settings.graph_splitting,
        )
        if same and point.precision == precision and point.frames <= frames:
            assert estimate >= point.peak_bytes
    assert memory.estimate_bytes(2 * frames, precision, settings) > estimate


def test_a_bucket_that_does_not_fit_is_not_attempted(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "missing_reason", lambda: None)
    monkeypatch.setattr(toolchain, "run_worker", _no_worker)
    monkeypatch.setattr(memory, "available_bytes", lambda: 12 * GIB)
    settings = replace(SETTINGS, long_buckets=True)
    out = tmp_path / "compiled" / "1800"
    out.mkdir(parents=True)
    (out / "stale_ctx.onnx").touch()
    report = compile_decoder(model, 1800, replace(SPEC, settings=settings), out)
    assert report["compiled"] is False
    assert report["estimated_bytes"] > 15 * 10**9
    assert "1800 frames in w8a16 at level 2 need about" in report["reason"]
    assert [p.name for p in out.iterdir()] == ["why.txt"]
    assert report["reason"] in (out / "why.txt").read_text(encoding="utf-8")


def test_a_long_bucket_is_compiled_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000 * GIB)
    on_demand = replace(SETTINGS, long_buckets=True)
    for frames, settings, refused in ((1000, SETTINGS, False), (1001, SETTINGS, True), (1001, on_demand, False)):
        reason = memory.refusal(frames, "w8a16", settings, ("x", 1))
        assert (reason is not None) == refused
        assert not refused or str(reason).startswith("long: more than 1000 frames")


def test_the_reserve_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    need = memory.estimate_bytes(120, "w8a16", SETTINGS)
    monkeypatch.setattr(memory, "available_bytes", lambda: need + GIB)
    assert memory.refusal(120, "w8a16", replace(SETTINGS, memory_reserve_gib=0.5), ("x", 1)) is None
    refused = memory.refusal(120, "w8a16", replace(SETTINGS, memory_reserve_gib=2), ("x", 1))
    assert refused is not None
    assert "reserve of 2 GiB" in refused


def test_a_tensor_beyond_the_width_wall_is_not_attempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000 * GIB)
    nodes = [
        helper.make_node("Neg", ["x"], ["wide"], name="n"),
        helper.make_node("Exp", ["m"], ["mono"], name="e"),
    ]
    path = save_model(
        tmp_path / "wide.onnx",
        nodes,
        {"x": (1, 2, 1, 65_536), "m": (1, 1, 1, 90_000)},
        {"wide": (1, 2, 1, 65_536), "mono": (1, 1, 1, 90_000)},
    )
    widest = memory.widest_tensor(path)
    assert widest == ("wide", 65_536)
    for settings in (SETTINGS, replace(SETTINGS, optimization_level=1, graph_splitting=True)):
        refused = memory.refusal(546, "w8a16", settings, widest)
        assert refused is not None
        assert "tensor wide is 65536 wide" in refused
    assert memory.refusal(546, "w8a16", replace(SETTINGS, optimization_level=1), widest) is None
    assert memory.refusal(546, "w8a16", SETTINGS, ("x", 65_535)) is None


def test_without_the_wheel_the_build_goes_on(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "library_dir", lambda: None)
    report = compile_decoder(model, 120, SPEC, tmp_path / "out")
    assert (report["compiled"], report["binary_bytes"]) == (False, 0)
    assert "onnxruntime-qnn is not installed" in report["reason"]
    assert (tmp_path / "out" / "why.txt").is_file()


def test_one_binary_for_all_needs_the_local_compiler(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "library_dir", lambda: None)
    for settings, why in (
        (SETTINGS, "120/why.txt"),
        (replace(SETTINGS, backend="aihub"), "120/why.txt"),
    ):
        out = tmp_path / "out"
        report = compile_shared({120: model}, replace(SPEC, settings=settings), out)
        assert (report["buckets"], report["compiled_buckets"], report["frames"]) == (1, 0, [])
        assert (report["binary_bytes"], report["graphs"]) == (0, 0)
        assert [path for path in out.rglob("*") if path.is_file()] == [out / why]
    assert (out / why).read_text() == "Not compiled: AI Hub compiles each bucket alone\n"


def test_a_wheel_that_does_not_load_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "library_dir", lambda: tmp_path)
    assert "holds no libQnnHtp.so" in (toolchain.missing_reason() or "")
    for name in ("libQnnHtp.so", "libHtpPrepare.so", "libQnnSystem.so", "libQnnIr.so"):
        (tmp_path / name).touch()
    monkeypatch.setattr(toolchain, "_ENTRY", "raise ImportError('GLIBC_2.35 not found')")
    assert toolchain.missing_reason() == (
        "no compiler: the QNN execution provider does not load: ImportError: GLIBC_2.35 not found"
    )


def test_a_crash_of_the_compiler_is_one_line(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_worker(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    settings = CompileSettings(graph_splitting=True, options={"vtcm_mb": 4})
    with pytest.raises(KokoroNpuError) as caught:
        compile_decoder(model, 120, replace(SPEC, settings=settings), tmp_path / "out")
    assert str(caught.value) == (
        "compile of 120 frames, w8a16, level 2 for sm8650, with graph splitting, options {'vtcm_mb': 4}: "
        "the compiler died of SIGSEGV"
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_an_error_of_the_compiler_keeps_its_cause(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "print('\x1b[31m[E:onnxruntime:, qnn_model.cc:1 Finalize] QNN.graphFinalize() error 1002\x1b[m')\n"
        "context = request['models'][0]['context']\n"
        "open(context.replace('.onnx', '_qnn.bin'), 'w').close()\n"
        "answer(ok=False, error='EPFail: Failed to finalize')\n"
        "sys.exit(1)\n"
    )
    _replace_worker(monkeypatch, tmp_path, code)
    with pytest.raises(KokoroNpuError, match=r"Failed to finalize \(QNN\.graphFinalize\(\) error 1002\)"):
        compile_decoder(model, 120, SPEC, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir() if "out" in p.name] == ["out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_nodes_on_the_cpu_are_an_error(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context model with a node beside the EPContext node: part of the decoder would run on the CPU."""
    code = (
        "from onnx import helper, save, TensorProto\n"
        "context = request['models'][0]['context']\n"
        "info = helper.make_tensor_value_info('x', TensorProto.FLOAT, [1])\n"
        "nodes = [helper.make_node('EPContext', ['x'], ['y'], domain='com.microsoft'),"
        " helper.make_node('Mod', ['y', 'x'], ['z'])]\n"
        "save(helper.make_model(helper.make_graph(nodes, 'g', [info], [info])), context)\n"
        "open(context.replace('.onnx', '_qnn.bin'), 'w').close()\n"
        "answer(ok=True)\n"
    )
    _replace_worker(monkeypatch, tmp_path, code)
    with pytest.raises(KokoroNpuError, match="1 EPContext nodes and Mod; the whole decoder must be one"):
        compile_decoder(model, 120, SPEC, tmp_path / "out")


def test_the_crash_of_one_of_several_names_it(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_worker(
        monkeypatch,
        tmp_path,
        "for each in request['models']:\n"
        "    print('begin', each['frames'], flush=True)\n"
        "    if each['frames'] == 130: os.kill(os.getpid(), signal.SIGSEGV)\n",
    )
    with pytest.raises(
        KokoroNpuError, match=r"^compile of 130 frames, w8a16, level 2 for sm8650: the compiler died of SI"
    ):
        compile_decoders({120: model, 130: model, 140: model}, SPEC, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_bucket_that_eats_the_machine_is_left_out(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others start again, without it."""
    tried = []

    def worker(_command: str, request: dict[str, Any], **_options: object) -> toolchain.WorkerRun:
        tried.append([each["frames"] for each in request["models"]])
        return toolchain.WorkerRun({}, -9, "begin 120\nbegin 130\n", 1.0, 5, guarded=130 in tried[-1])

    monkeypatch.setattr(toolchain, "missing_reason", lambda: None)
    monkeypatch.setattr(toolchain, "library_dir", lambda: tmp_path)
    monkeypatch.setattr(toolchain, "run_worker", worker)
    with pytest.raises(KokoroNpuError, match=r"compile of 120 frames, .* died of SIGKILL"):
        compile_decoders({130: model, 120: model}, SPEC, tmp_path / "out")
    assert tried == [[120, 130], [120]]


def test_a_compile_that_eats_the_machine_is_ended(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_worker(monkeypatch, tmp_path, "time.sleep(600)")
    monkeypatch.setattr(toolchain, "available_bytes", lambda: GIB // 4)
    report = compile_decoder(model, 120, SPEC, tmp_path / "out")
    assert report["compiled"] is False
    assert "out of memory: " in report["reason"]
    assert report["peak_rss_bytes"] > 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signals are Linux's")
def test_a_killed_build_leaves_no_compiler_behind(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = (
        "import os, sys, time\n"
        "from kokoro_npu.compile.worker import _die_with_parent\n"
        "_die_with_parent()\n"
        f"open({str(pid_file) + '.part'!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid_file) + '.part'!r}, {str(pid_file)!r})\n"
        "time.sleep(600)\n"
    )
    parent = (
        f"from kokoro_npu.compile import toolchain\ntoolchain._ENTRY = {child!r}\ntoolchain.run_worker('probe', {{}})\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # what the killed parent leaves is swept with the test
    build = subprocess.Popen([sys.executable, "-c", parent], cwd=Path(__file__).parents[1], env=environment)
    deadline = time.monotonic() + 60
    while not pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = psutil.Process(int(pid_file.read_text(encoding="ascii")))
    os.kill(build.pid, signal.SIGKILL)
    build.wait()
    worker.wait(timeout=60)
    assert not worker.is_running()


def test_leftovers_of_a_killed_compile_go(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / ".out-k2x.part"
    stale.mkdir()
    (stale / "decoder_ctx.onnx").touch()
    _replace_worker(monkeypatch, tmp_path, "sys.exit(3)")
    with pytest.raises(KokoroNpuError, match="the compiler ended with status 3"):
        compile_decoder(model, 120, SPEC, tmp_path / "out")
    assert not stale.exists()


def test_unknown_backend(tmp_path: Path, model: Path) -> None:
    with pytest.raises(KokoroNpuError, match="unknown backend 'locall'; did you mean 'local'"):
        compile_decoder(model, 120, replace(SPEC, settings=CompileSettings("locall")), tmp_path / "o")
    assert "local" in BACKENDS


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"gone\.onnx: no such model"):
        compile_decoder(tmp_path / "gone.onnx", 120, SPEC, tmp_path / "o")


def _info(**changes: object) -> BinaryInfo:
    inputs = {name: (shape, "float32") for name, shape in INPUTS.items()}
    graph = GraphInfo("g", inputs, {"audio": ((1, 2 * WIDTH), "float32")}, 8, 2)
    graph = replace(graph, **{k: v for k, v in changes.items() if k in GraphInfo.__dataclass_fields__})  # type: ignore[arg-type]  # test-only shorthand
    info = BinaryInfo(57, 75, "v2", (graph,))
    return replace(info, **{k: v for k, v in changes.items() if k in BinaryInfo.__dataclass_fields__})  # type: ignore[arg-type]  # test-only shorthand


def test_the_right_binary_passes(model: Path) -> None:
    check_binary(_info(), SM8650, 2, model, "b.bin")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"soc_model": 43}, "is for soc_model 43, htp_arch 75; sm8650 is soc_model 57, htp_arch 75"),
        ({"htp_arch": 73}, "is for soc_model 57, htp_arch 73"),
        ({"graphs": ()}, "holds 0 graphs instead of one"),
        ({"optimization_level": 1}, "finalized at level 1 instead of 2"),
        ({"vtcm_mb": 16}, "asks for 16 MB of VTCM"),
        ({"outputs": {"audio": ((1, 127), "float32")}}, "outputs differ from the model: audio is"),
        ({"outputs": {"audio": ((1, 2 * WIDTH), "ufixed16")}}, "outputs differ from the model: audio is"),
        ({"inputs": {}}, "inputs differ from the model: mask is missing"),
    ],
)
def test_a_wrong_binary_is_caught(model: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(KokoroNpuError, match=message):
        check_binary(_info(**changes), SM8650, 2, model, "b.bin")


def test_reading_a_missing_binary(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match="no such context binary"):
        read_binary(tmp_path / "none.bin")
