"""The plan is trustworthy: it is what its sources say, and DVC reruns exactly what a change touches."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.plan_copy import BUCKETS, PlanCopy
from tools.plan import closure, compose, pipelines, script, with_code_deps

ROOT = Path(__file__).resolve().parents[1]
DVC_YAML = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
STAGES: dict[str, dict[str, Any]] = yaml.safe_load(DVC_YAML)["stages"]
# With those of the optional pipelines, which plain `dvc repro` leaves out.
ALL_STAGES: dict[str, dict[str, Any]] = {
    name: stage for path in pipelines(ROOT) for name, stage in yaml.safe_load(path.read_text())["stages"].items()
}


def test_params_yaml_is_the_composition() -> None:
    assert (ROOT / "params.yaml").read_text(encoding="utf-8") == compose(ROOT, []), "run `make plan`"


@pytest.mark.parametrize("path", pipelines(ROOT), ids=lambda path: str(path.relative_to(ROOT)))
def test_code_dependencies_are_the_import_closure(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert with_code_deps(text, ROOT) == text, "run `make plan`"


def test_a_stage_is_one_thin_script_and_every_script_is_a_stage() -> None:
    scripts = {script(stage["cmd"]) for stage in ALL_STAGES.values()}
    files = [*ROOT.glob("stages/[!_]*.py"), *ROOT.glob("pipelines/*/[!_]*.py")]
    assert scripts == {str(path.relative_to(ROOT)) for path in files}
    assert {script(stage["cmd"]) for stage in STAGES.values()} == {f for f in scripts if f.startswith("stages/")}
    assert {s: n for s in scripts if (n := len((ROOT / s).read_text().splitlines())) > 70} == {}


def test_the_closure_follows_every_way_to_import(tmp_path: Path) -> None:
    files = {
        "stages/a.py": "from stages._help import x\nimport kokoro_npu.one\nimport kokoro_stranger",
        "stages/_help.py": "def f():\n    from kokoro_npu import two",
        "stages/b.py": "",
        "kokoro_npu/__init__.py": '"""See kokoro_npu.unused."""',
        "kokoro_npu/one.py": "from .sub import deep\nif TYPE_CHECKING:\n    from kokoro_npu import unused",
        "kokoro_npu/two.py": "run(['-c', 'from kokoro_npu.child import main'])",
        "kokoro_npu/child.py": "load(f'kokoro_npu.many.{name}')",
        "kokoro_npu/many/first.py": "",
        "kokoro_npu/many/second.py": "from ..four import value",
        "kokoro_npu/four.py": "",
        "kokoro_npu/sub/__init__.py": "from kokoro_npu.sub.sibling import y",
        "kokoro_npu/sub/sibling.py": "",
        "kokoro_npu/sub/deep.py": "",
        "kokoro_npu/sub/unused.py": "",
        "kokoro_npu/sub/data/table.csv": "",
        "kokoro_npu/unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    unused = {
        "stages/b.py",
        "kokoro_npu/unused.py",
        "kokoro_npu/sub/unused.py",
        "kokoro_npu/sub/data/table.csv",
    }
    assert closure(tmp_path, "stages/a.py") == sorted((set(files) - unused) | {"kokoro_npu/sub/data"})
    assert closure(tmp_path, "stages/b.py") == ["stages/b.py"]


def _leaves(params: Any, path: str = "") -> list[str]:
    if not isinstance(params, dict) or not params:
        return [path]
    return [leaf for key, inner in params.items() for leaf in _leaves(inner, f"{path}.{key}".lstrip("."))]


def test_every_parameter_belongs_to_a_stage() -> None:
    declared = {key for stage in ALL_STAGES.values() for key in stage.get("params", [])}
    unused = [
        leaf
        for leaf in _leaves(yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8")))
        if not any(leaf == key or leaf.startswith(f"{key}.") for key in declared)
    ]
    # bucket.frames is what `buckets`, the matrix, is made of.
    assert unused == ["bucket.frames"]


def test_all_of_quantize_but_its_gates_makes_the_model() -> None:
    quantize = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["quantize"]
    made_by = {f"quantize.{key}" for key in quantize} - {"quantize.gates"}
    for stage in ("calibrate", "quantize"):
        assert made_by == {key for key in STAGES[stage]["params"] if key.startswith("quantize")}


# --- What DVC does, on a copy of the plan whose stages are fakes ---

# What all buckets have in common: in each, some file is of all.
JOINS = {"shared-binary", "summary", "report", "package"}
EVERY_BUCKET = {name for name, stage in STAGES.items() if "matrix" in stage}
JUDGES = {"op-audit", "qai-compile", "shared-binary", "parity-eval", "device-profile", "summary", "report", "package"}

# Parameter, another valid value, and the stages (all their buckets) that rerun, in the worst case that every
# one of them writes something new.
RERUNS: list[tuple[str, Any, set[str]]] = [
    ("seed", 1, {"reference-set", "calibrate", "quantize"} | JUDGES),
    ("weights.dither", True, set(STAGES)),
    ("export.opset", 18, set(STAGES) - {"fetch-weights"}),
    ("corpus", "data/other.yaml", {"reference-set", "calibrate", "quantize"} | JUDGES),
    ("quantize.precision", "w8a8", {"calibrate", "quantize"} | JUDGES),
    ("quantize.recipe", "recipes/mixed.yaml", {"calibrate", "quantize"} | JUDGES),
    ("quantize.calibration.frames", 64, {"calibrate", "quantize"} | JUDGES),
    ("quantize.gates.quantized_snr_db_min", 1.0, {"parity-eval", "summary", "report", "package"}),
    ("target.vtcm_mb", 4, JUDGES - {"parity-eval"}),
    ("compile.optimization_level", 3, JUDGES - {"parity-eval"}),
    ("audit.op_table", "data/other.csv", {"op-audit", "summary", "report"}),
    ("parity.fill_min", 0.1, {"parity-eval", "summary", "report", "package"}),
    ("parity.gates.fp32_snr_db_min", 1.0, {"parity-eval", "summary", "report", "package"}),
    ("profile.runs", 2, {"device-profile", "summary", "report"}),
    ("report.baseline", "HEAD~0", {"report"}),
    ("aihub.utterances", 2, {"qai-compile", "device-profile", "summary", "report", "package"}),
    ("package.precisions", ["fp32"], {"package"}),
]


def test_the_table_covers_every_section() -> None:
    declared = {key.split(".")[0] for stage in STAGES.values() for key in stage.get("params", [])}
    assert {key.split(".")[0] for key, _, _ in RERUNS} == declared - {"buckets"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> PlanCopy:
    """Built once, and its build committed."""
    repo = PlanCopy(tmp_path_factory.mktemp("plan"))
    run = repo.dvc("repro")
    assert run.returncode == 0, run.stderr
    assert sorted(repo.ran()) == sorted(instances(set(STAGES), BUCKETS))
    repo.commit()
    return repo


@pytest.fixture
def repo(built: PlanCopy) -> Iterator[PlanCopy]:
    """The built copy, as it was committed."""
    yield built
    built.git("reset", "-q", "--hard")
    built.git("clean", "-fdq")
    # Of all: with a name DVC would leave other buckets' files there. What the optional pipelines make is in no cache.
    assert built.dvc("checkout", "-q", "--allow-missing").returncode == 0
    built.ran()


def instances(stages: set[str], buckets: list[int]) -> list[str]:
    return [
        name
        for stage in stages
        for name in ([f"{stage}@{frames}" for frames in buckets] if stage in EVERY_BUCKET else [stage])
    ]


@pytest.mark.pipeline
def test_touching_nothing_runs_nothing_and_git_stays_clean(repo: PlanCopy) -> None:
    caches = [
        repo.path / "kokoro_npu" / "__pycache__" / "x.pyc",
        repo.path / "stages" / "__pycache__" / "x.pyc",
    ]
    for cache in caches:
        cache.parent.mkdir()
        cache.write_bytes(b"")
    assert repo.dvc("repro").returncode == 0
    assert repo.ran() == []
    assert repo.git("status", "--short") == ""
    assert list((repo.path / "artifacts").rglob(".gitignore")) == []


@pytest.mark.pipeline
@pytest.mark.parametrize(("key", "value", "stages"), RERUNS, ids=[key for key, _, _ in RERUNS])
def test_a_parameter_reruns_exactly_its_stages(repo: PlanCopy, key: str, value: Any, stages: set[str]) -> None:
    if isinstance(value, str) and value.startswith("data/"):
        (repo.path / value).write_text("other")
    repo.set_param(key, value)
    run = repo.dvc("repro")
    assert run.returncode == 0, run.stderr
    assert sorted(repo.ran()) == sorted(instances(stages, BUCKETS))


@pytest.mark.pipeline
def test_another_bucket_touches_its_own_chain_alone(repo: PlanCopy) -> None:
    run = repo.dvc("exp", "run", "-S", f"bucket.frames=[128,{BUCKETS[0]}]")
    assert run.returncode == 0, run.stderr
    assert repo.params()["buckets"] == [BUCKETS[0], 128]
    assert sorted(repo.ran()) == sorted([*instances(EVERY_BUCKET, [128]), *JOINS])
    assert "reports/parity/128.json" in repo.dvc("metrics", "show").stdout
    assert "reports/summary.json" in repo.dvc("metrics", "diff").stdout


@pytest.mark.pipeline
@pytest.mark.parametrize("code", ["kokoro_npu/audit", "kokoro_npu/model/decoder.py"])
def test_code_reruns_the_stages_that_import_it(repo: PlanCopy, code: str) -> None:
    path = repo.path / code
    for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
        file.write_text(file.read_text() + "\n# changed\n")
    assert repo.dvc("repro").returncode == 0
    direct = {n for n, stage in STAGES.items() if any(d.startswith(code) for d in stage["deps"])}
    ran = {name.split("@")[0] for name in repo.ran()}
    assert direct
    assert direct <= ran
    if code == "kokoro_npu/audit":
        assert ran == {"op-audit", "summary", "report"}


@pytest.mark.pipeline
def test_another_precision_keeps_the_float_half(repo: PlanCopy) -> None:
    run = repo.dvc("exp", "run", "-S", "quantize=fp16")
    assert run.returncode == 0, run.stderr
    assert repo.params()["quantize"]["precision"] == "fp16"
    assert sorted(repo.ran()) == sorted(instances({"calibrate", "quantize"} | JUDGES, BUCKETS))


@pytest.mark.pipeline
@pytest.mark.parametrize(
    "override",
    [
        "bucket.frames=0",
        "bucket.frames=abc",
        "bucket.frames=1.5",
        "bucket.framez=1",
        "weights=nosuch",
        "weights.source=nosuch",
    ],
)
def test_a_bad_override_leaves_everything_as_it_was(repo: PlanCopy, override: str) -> None:
    before = repo.snapshot()
    run = repo.dvc("exp", "run", "-S", override)
    assert run.returncode != 0
    assert re.fullmatch(r"error: [^\n]+\n", run.stderr)
    assert run.stdout == ""
    assert repo.ran() == []
    assert repo.snapshot() == before
    assert repo.git("status", "--short") == ""


@pytest.mark.pipeline
def test_a_killed_repro_goes_on_where_it_stopped(repo: PlanCopy) -> None:
    hang = repo.path.parent / "hang-calibrate"
    log = repo.path.parent / "ran.txt"
    repo.set_param("export.opset", 19)  # not 18, which the table may have left in DVC's run cache
    hang.touch()
    command, env = repo.command("repro")
    with subprocess.Popen(
        command,
        cwd=repo.path,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + 120
            while "calibrate" not in (log.read_text().split() if log.exists() else []):
                assert process.poll() is None, "ended before it could be killed"
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
        finally:
            hang.unlink()  # else a fake that is still there waits for ever
    first = repo.ran()
    assert first[-1] == "calibrate"
    run = repo.dvc("repro")
    assert run.returncode == 0, run.stderr
    second = repo.ran()
    assert "calibrate" in second  # DVC may take up another branch before it
    assert set(first[:-1]) & set(second) == set()
    expected = instances(set(STAGES) - {"fetch-weights"}, BUCKETS)
    assert sorted(first[:-1] + second) == sorted(expected)
