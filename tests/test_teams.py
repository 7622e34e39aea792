"""Several machines: a shared remote, chains of buckets on workers, queued experiments; DVC is real, stages are not."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.plan_copy import BUCKETS, PlanCopy
from tests.test_plan import EVERY_BUCKET, JOINS, STAGES, instances

ROOT = Path(__file__).resolve().parents[1]
JUDGES = ["op-audit", "qai-compile", "parity-eval", "device-profile"]
SHARED = {name for name in STAGES if name not in EVERY_BUCKET} - JOINS

pytestmark = pytest.mark.pipeline


@pytest.fixture
def origin(tmp_path: Path) -> PlanCopy:
    """An unbuilt plan whose default remote is a directory."""
    repo = PlanCopy(tmp_path)
    assert repo.dvc("remote", "add", "-d", "team", str(tmp_path / "remote")).returncode == 0
    repo.commit()
    return repo


def clone(origin: PlanCopy, base: Path) -> PlanCopy:
    """Another machine: a clone with an empty cache."""
    base.mkdir()
    other = object.__new__(PlanCopy)
    other.path = base / "repo"
    subprocess.run(["git", "clone", "-q", str(origin.path), str(other.path)], check=True)
    return other


def run(repo: PlanCopy, *args: str) -> str:
    done = repo.dvc(*args)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def push(repo: PlanCopy) -> None:
    """What a worker does at its end."""
    tool = [sys.executable, str(ROOT / "tools/push_runs.py")]
    done = subprocess.run(tool, cwd=repo.path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[1-9]\d* files pushed\n", done.stdout)


def test_what_one_pushes_another_pulls(origin: PlanCopy, tmp_path: Path) -> None:
    run(origin, "repro")
    run(origin, "push")
    origin.commit()
    other = clone(origin, tmp_path / "other")
    run(other, "pull", "dvc.yaml")
    assert run(other, "repro") != ""
    assert other.ran() == []
    files = [path.relative_to(origin.path) for path in (origin.path / "artifacts").rglob("*") if path.is_file()]
    assert files
    for name in files:
        assert (other.path / name).read_bytes() == (origin.path / name).read_bytes()


def test_chains_of_buckets_run_on_workers_and_are_joined(origin: PlanCopy, tmp_path: Path) -> None:
    first = clone(origin, tmp_path / "first")
    run(first, "repro", "--pull", "reference-set", "calibrate", "decoder-weights")
    assert set(first.ran()) == SHARED
    push(first)
    for frames in BUCKETS:
        worker = clone(origin, tmp_path / f"worker{frames}")
        run(worker, "repro", "--pull", *(f"{stage}@{frames}" for stage in JUDGES))
        assert sorted(worker.ran()) == sorted(instances(EVERY_BUCKET, [frames]))
        push(worker)
    last = clone(origin, tmp_path / "last")
    run(last, "repro", "--pull")
    assert set(last.ran()) == JOINS
    assert len(list((last.path / "reports/parity").iterdir())) == len(BUCKETS)


def test_queued_experiments_run_side_by_side(origin: PlanCopy) -> None:
    run(origin, "repro")
    origin.commit()
    origin.ran()
    run(origin, "exp", "run", "--queue", "-S", "quantize=fp16,w8a8", "-S", "target.vtcm_mb=4")
    assert origin.ran() == []
    run(origin, "queue", "start", "-j", "2")
    _until_idle(origin)
    assert run(origin, "queue", "status").count("Success") == 2
    # the chains after `calibrate`, twice; nothing before it
    # Experiments run in directories below this one, where the fakes' log is theirs.
    ran = (origin.path / ".dvc/tmp/exps/ran.txt").read_text().split()
    assert sorted(ran) == sorted(2 * instances({"calibrate", "quantize", *JUDGES, *JOINS}, BUCKETS))
    shown = run(origin, "exp", "show", "--md", "--only-changed", "--drop", ".*json:.*|artifacts.*|kokoro.*|stages.*")
    assert {"fp16", "w8a8"} <= set(re.findall(r"\w+", shown))
    assert origin.git("status", "--short") == ""


def _until_idle(repo: PlanCopy) -> None:
    for _ in range(120):
        status = run(repo, "queue", "status")
        if "Running" not in status and "Queued" not in status:
            return
        time.sleep(1)
    pytest.fail(status)


def test_the_comment_always_holds_the_bucket_count(origin: PlanCopy) -> None:
    tool = origin.path / "tools"
    shutil.copytree(ROOT / "tools", tool)
    run(origin, "repro")
    summary = (ROOT / "reports/summary.json").read_text()
    (origin.path / "reports/summary.json").write_text(summary)
    origin.commit()
    (origin.path / "reports/summary.json").write_text(
        re.sub(r'("quantized_snr_db_min": )[\d.]+', r"\g<1>19.5", summary)
    )
    command = [sys.executable, str(tool / "metrics_comment.py"), "HEAD"]
    done = subprocess.run(command, cwd=origin.path, env=os.environ, capture_output=True, text=True, check=True)
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert any(re.match(r"\| buckets +\| 3 +\| 3 +\|", line) for line in table)
    assert any(re.match(r"\| quantized_snr_db_min +\| [\d.]+ +\| 19.5 +\| -", line) for line in table)
    assert max(map(len, done.stdout.splitlines())) <= 120
