"""A copy of the plan with fake stages that write their outs at once: what DVC does with it is real."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tools.plan import script

ROOT = Path(__file__).resolve().parents[1]
BUCKETS = [60, 77]

# Writes something new at each run, so that all stages that depend on a rerun one rerun too: the worst case.
_FAKE = """\
import json, pathlib, sys, time, uuid
here = pathlib.Path(__file__)
frames = "".join(sys.argv[1:]).removeprefix("frames=")
label = json.loads((here.parent / "labels.json").read_text())[here.stem]
with open("../ran.txt", "a") as log:
    log.write(label["name"] + ("@" + frames if frames else "") + "\\n")
while pathlib.Path("../hang-" + here.stem).exists():
    time.sleep(0.05)
for out in label["outs"]:
    out = pathlib.Path(out.replace("${item.frames}", frames))
    if not out.suffix:
        out = out / "file.txt"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"value": uuid.uuid4().int % 1000}))
"""


def outs(stage: dict[str, Any]) -> list[str]:
    """Paths (templates) that a stage of dvc.yaml writes."""
    entries = [*stage.get("outs", []), *stage.get("metrics", []), *stage.get("plots", [])]
    return [next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries]


class PlanCopy:
    """A git repository in ``path`` with this project's plan and fake stages, committed."""

    def __init__(self, base: Path) -> None:
        self.path = base / "repo"
        self.path.mkdir()
        ignore = shutil.ignore_patterns("__pycache__", "tmp", "cache", "config.local")
        # Optional pipelines as well: an experiment checks out what their dvc.lock names, and nothing of it is cached.
        for name in (".dvc", "conf", "data", "kokoro_npu", "pipelines", "recipes", "stages"):
            shutil.copytree(ROOT / name, self.path / name, ignore=ignore)
        for name in (".dvcignore", ".gitignore", "LICENSE", "NOTICE", "dvc.yaml", "params.yaml"):
            shutil.copy2(ROOT / name, self.path / name)
        # Two small buckets, to run fewer stages.
        (self.path / "conf" / "bucket" / "shipped.yaml").write_text(f"frames: {BUCKETS}\n")
        self.set_param("bucket.frames", BUCKETS)
        self.set_param("buckets", BUCKETS)
        labels = {}
        for stage_name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items():
            path = self.path / script(stage["cmd"])
            path.write_text(_FAKE)
            labels[path.stem] = {"name": stage_name, "outs": outs(stage)}
        (self.path / "stages" / "labels.json").write_text(json.dumps(labels))
        self.git("init", "-q")
        self.git("config", "user.name", "test")
        self.git("config", "user.email", "test@invalid")
        self.commit()

    def git(self, *args: str) -> str:
        """Run git; its standard output."""
        run = subprocess.run(["git", *args], cwd=self.path, check=True, capture_output=True, text=True)
        return run.stdout

    def commit(self) -> None:
        """Commit everything that is not ignored."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "test")

    def command(self, *args: str) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of a dvc command whose stages run under this interpreter."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return [sys.executable, "-m", "dvc", *args], os.environ | {"PATH": path}

    def dvc(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run dvc to its end, whatever its exit code."""
        command, env = self.command(*args)
        return subprocess.run(command, cwd=self.path, env=env, capture_output=True, text=True, timeout=300)

    def ran(self) -> list[str]:
        """Stages that ran since the last call, in order."""
        log = self.path.parent / "ran.txt"
        names = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return names

    def params(self) -> Any:
        """params.yaml, parsed."""
        return yaml.safe_load((self.path / "params.yaml").read_text())

    def set_param(self, key: str, value: Any) -> None:
        """Set one dotted key of params.yaml."""
        params = self.params()
        *parents, last = key.split(".")
        section = params
        for parent in parents:
            section = section[parent]
        assert last in section, f"{key} is not in params.yaml"
        section[last] = value
        (self.path / "params.yaml").write_text(yaml.safe_dump(params))

    def snapshot(self) -> dict[str, bytes]:
        """Every file of the working tree that DVC or a stage may write, with its content."""
        files = [self.path / "dvc.lock", self.path / "params.yaml"]
        for directory in ("artifacts", "reports"):
            files += (self.path / directory).rglob("*")
        return {str(path): path.read_bytes() for path in files if path.is_file()}
