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
import yaml
from onnx import helper

from kokoro_npu.compile import memory, toolchain
from kokoro_npu.compile.binary import BinaryInfo, GraphInfo, check_binary, read_binary
from kokoro_npu.compile.local import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.compile.shared import compile_shared
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json
from tests.small_graphs import INPUTS, WIDTH, decoder_like, save_model
from tools.plan import closure, compose

ROOT = Path(__file__).resolve().parents[1]

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
        (400, "w8a8", SETTINGS),
        (552, "w8a16", replace(SETTINGS, optimization_level=1)),
        (120, "fp16", replace(SETTINGS, optimization_level=3)),
    ],
)
def test_estimates_cover_the_measured_points_and_grow(frames: int, precision: str, settings: CompileSettings) -> None:
    estimate = memory.estimate_bytes(frames, precision, settings)
    for size, peak in memory.PEAKS.get((precision, settings.optimization_level), {}).items():
        assert size > frames or estimate >= peak
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
    assert "1800 frames in w8a16 at level 2 need about" in report["reason"]
    assert [p.name for p in out.iterdir()] == ["why.txt"]
    assert report["reason"] in (out / "why.txt").read_text(encoding="utf-8")


def test_a_long_bucket_is_compiled_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000 * GIB)
    on_demand = replace(SETTINGS, long_buckets=True)
    for frames, settings, refused in ((1000, SETTINGS, False), (1001, SETTINGS, True), (1001, on_demand, False)):
        reason = memory.refusal(frames, "w8a16", settings, ("x", 1))
        assert bool(reason) == refused
        assert not refused or reason.startswith("long: more than 1000 frames")


def test_a_bucket_that_the_build_compiles_is_no_long_bucket(tmp_path: Path) -> None:
    """The pipeline `long` follows `buckets`: with ``bucket.frames=200`` it has nothing to compile, and says so."""
    plan = yaml.safe_load((ROOT / "pipelines/long/dvc.yaml").read_text(encoding="utf-8"))
    assert plan["stages"]["long-bucket"]["matrix"] == {"frames": "${buckets}"}
    (tmp_path / "params.yaml").write_text(compose(ROOT, ["bucket.frames=200"]), encoding="utf-8")
    model = tmp_path / "artifacts" / "quantized" / "kokoro_decoder_200.onnx"
    for path, text in ((model, ""), (tmp_path / "artifacts/weights/source.json", '{"source": "wheel"}')):
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pipelines.long.long_bucket", "frames=200"], cwd=tmp_path, capture_output=True,
        text=True, timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout == "200 frames: in the build: artifacts/compiled/200 holds buckets of up to 1000 frames\n"
    report = read_json(tmp_path / "reports" / "long" / "200.json")
    assert (report["compiled"], report["reason"], report["weights_source"]) == (False, "in the build", "wheel")
    assert (
        (tmp_path / "artifacts/long/200/why.txt").read_text(encoding="utf-8").startswith("Not compiled: in the build")
    )


def test_only_two_stages_depend_on_the_client_of_ai_hub() -> None:
    scripts = [*ROOT.glob("stages/[a-z]*.py"), *ROOT.glob("pipelines/*/[a-z]*.py")]
    assert len(scripts) > 20
    found = {str(path.relative_to(ROOT)): closure(ROOT, str(path.relative_to(ROOT))) for path in scripts}
    using = {script for script, read in found.items() if any("aihub" in path for path in read)}
    assert using == {"stages/device_profile.py", "stages/qai_compile.py"}


def test_the_reserve_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    need = memory.estimate_bytes(120, "w8a16", SETTINGS)
    monkeypatch.setattr(memory, "available_bytes", lambda: need + GIB)
    assert memory.refusal(120, "w8a16", replace(SETTINGS, memory_reserve_gib=0.5), ("x", 1)) == ""
    assert "reserve of 2 GiB" in memory.refusal(120, "w8a16", replace(SETTINGS, memory_reserve_gib=2), ("x", 1))


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
    assert "tensor wide is 65536 wide" in memory.refusal(546, "w8a16", SETTINGS, widest)
    assert memory.refusal(546, "w8a16", replace(SETTINGS, optimization_level=1), widest) == ""
    assert memory.refusal(546, "w8a16", SETTINGS, ("x", 65_535)) == ""


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
        assert (report["binary_bytes"], report["qairt"]) == (0, "")
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
    settings = CompileSettings(options={"vtcm_mb": 4})
    with pytest.raises(KokoroNpuError) as caught:
        compile_decoder(model, 120, replace(SPEC, settings=settings), tmp_path / "out")
    assert str(caught.value) == (
        "compile of 120 frames, w8a16, level 2 for sm8650, options {'vtcm_mb': 4}: the process died of SIGSEGV"
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
        KokoroNpuError, match=r"^compile of 130 frames, w8a16, level 2 for sm8650: the process died of SI"
    ):
        compile_shared({120: model, 130: model, 140: model}, SPEC, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_bucket_that_eats_the_machine_is_left_out(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others start again, without it."""
    tried = []

    def worker(_command: str, request: dict[str, Any], **_options: object) -> toolchain.WorkerRun:
        tried.append([each["frames"] for each in request["models"]])
        return toolchain.WorkerRun({}, -9, f"begin 120\nbegin {tried[-1][-1]}\n", 1.0, 5, guarded=130 in tried[-1])

    monkeypatch.setattr(toolchain, "missing_reason", lambda: None)
    monkeypatch.setattr(toolchain, "library_dir", lambda: tmp_path)
    monkeypatch.setattr(toolchain, "run_worker", worker)
    with pytest.raises(KokoroNpuError, match=r"compile of 120 frames, .* died of SIGKILL"):
        compile_shared({130: model, 120: model}, SPEC, tmp_path / "out")
    assert tried == [[120, 130], [120]]


def test_a_compile_that_eats_the_machine_is_ended(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_worker(monkeypatch, tmp_path, "time.sleep(600)")
    monkeypatch.setattr(toolchain, "available_bytes", lambda: GIB // 4)
    report = compile_decoder(model, 120, SPEC, tmp_path / "out")
    assert report["compiled"] is False
    assert "out of memory: " in report["reason"]
    assert report["peak_rss_bytes"] > 0


def test_the_users_python_path_comes_after_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of the user's own path are there in the worker, and none of them stands for this library."""
    (tmp_path / "of_the_user.py").write_text("WORD = 'found'\n", encoding="utf-8")
    (tmp_path / "kokoro_npu").mkdir()
    (tmp_path / "kokoro_npu" / "__init__.py").write_text("raise SystemExit('the wrong library')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), "", str(tmp_path / "nowhere")]))
    code = "import of_the_user, kokoro_npu.compile\nanswer(ok=True, word=of_the_user.WORD)\n"
    _replace_worker(monkeypatch, tmp_path, code)
    assert toolchain.run_worker("probe", {}).answer("the probe")["word"] == "found"


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
    with pytest.raises(KokoroNpuError, match="the process ended with status 3"):
        compile_decoder(model, 120, SPEC, tmp_path / "out")
    assert not stale.exists()


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"gone\.onnx: no such model"):
        compile_decoder(tmp_path / "gone.onnx", 120, SPEC, tmp_path / "o")


def _info(**changes: object) -> BinaryInfo:
    inputs = {name: (shape, "float32") for name, shape in INPUTS.items()}
    graph = GraphInfo("g", inputs, {"audio": ((1, 2 * WIDTH), "float32")}, 8, 2, {})
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
