"""The first hour of somebody who extends the project: what docs/extending.md adds, added in a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.files import read_json, write_json
from kokoro_npu.page.page import write_page
from tests.page_case import write_build
from tests.plan_copy import PlanCopy
from tests.tiny_model import VOCAB, save_upstream_files, tiny_kmodel, tiny_voice

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
EXAMPLES: dict[str, str] = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
"""The file that the first line of each block of the page names, and its content."""
COMMANDS: list[str] = re.findall(r"`dvc exp run (-S [^`]+)`", PAGE)

FRAMES = 40


def add(root: Path, name: str) -> None:
    """Write an example into a tree that does not have it yet."""
    path = root / name
    assert not path.exists()
    path.parent.mkdir(exist_ok=True)
    path.write_text(EXAMPLES[name], encoding="utf-8")


def example(folder: str) -> list[str]:
    """The examples of one folder."""
    return [name for name in EXAMPLES if name.startswith(f"{folder}/")]


def test_each_addition_is_one_file_and_a_runtime_one_module_and_one_folder() -> None:
    kinds = {name.rpartition("/")[0] for name in EXAMPLES}
    assert kinds == {
        "conf/bucket", "conf/target", "conf/quantize", "kokoro_npu/runtimes", "pipelines/torchexport"
    }  # fmt: skip
    assert len(EXAMPLES) == 1 + 1 + 2 + 1 + 2  # a precision, and one that only adds a gate; a stage has plan and script


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> PlanCopy:
    """The plan with fake stages, and with the examples of conf/."""
    repo = PlanCopy(tmp_path_factory.mktemp("first_hour"))
    for name in example("conf"):
        add(repo.path, name)
    repo.commit()
    return repo


@pytest.mark.pipeline
@pytest.mark.parametrize("name", example("conf"))
def test_the_command_of_the_page_builds_it(copy: PlanCopy, name: str) -> None:
    group, stem = Path(name).parent.name, Path(name).stem
    (command,) = (text for text in COMMANDS if text == f"-S {group}={stem}")
    run = copy.dvc("exp", "run", *command.split())
    assert run.returncode == 0, run.stderr
    assert copy.ran()
    params = copy.params()
    if group == "bucket":
        assert params["buckets"] == yaml.safe_load(EXAMPLES[name])["frames"]
    else:
        assert stem in (params[group].get("precision"), params[group].get("name"))


def test_the_page_shows_the_precision_and_its_gate(tmp_path: Path) -> None:
    write_build(tmp_path)
    for path in (tmp_path / "reports").glob("*/*.json"):
        write_json(path, read_json(path) | {"precision": "strict"})
    gates = yaml.safe_load(EXAMPLES["conf/quantize/strict.yaml"])["gates"]
    ((gate, bound),) = gates.items()
    assert gate.startswith(f"{QUANTIZED}_")
    write_page(tmp_path, [60, 400], "strict", gates, 0.05, "HEAD")
    html = (tmp_path / "reports/index.html").read_text(encoding="utf-8")
    assert "strict" in html
    assert f"≥ {bound:g}" in html


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the real tree with the new runtime, and weights as small as upstream allows."""
    root = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in (".dvc", "conf", "data", "kokoro_npu", "pipelines", "recipes", "stages", "tools"):
        shutil.copytree(ROOT / name, root / name, ignore=ignore)
    for name in ("dvc.yaml", "pyproject.toml"):
        shutil.copy2(ROOT / name, root / name)
    for name in (*example("kokoro_npu"), *example("pipelines")):
        add(root, name)
    save_upstream_files(tiny_kmodel(0, weight_norm=True), root / "weights", {"v": tiny_voice(0)})
    utterances = [
        {"id": f"u{number}", "part": part, "voice": "v", "speed": 1.0, "text": str(number), "phonemes": phonemes}
        for number, (part, phonemes) in enumerate((("calibration", "".join(VOCAB)), ("evaluation", "abc.")))
    ]
    (root / "data/tiny.yaml").write_text(yaml.safe_dump({"utterances": utterances}), encoding="utf-8")
    return root


def run(root: Path, *arguments: str) -> str:
    """A module or a script of the tree, by its own library."""
    path = os.pathsep.join(map(str, (root, root / "conf")))
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def planned(tree: Path) -> Path:
    """After ``make plan``, for the small weights and one small bucket."""
    compose = "import sys; from tools.plan import ROOT, compose; print(compose(ROOT, sys.argv[1:]), end='')"
    overrides = ["weights=file", "weights.model=weights/model.pth", "corpus=data/tiny.yaml", f"bucket.frames={FRAMES}"]
    run(tree, "tools/plan.py")
    (tree / "params.yaml").write_text(run(tree, "-c", compose, *overrides), encoding="utf-8")
    return tree


def _code_of(tree: Path) -> Iterator[str]:
    plan: dict[str, Any] = yaml.safe_load((tree / "pipelines/torchexport/dvc.yaml").read_text(encoding="utf-8"))
    for stage in plan["stages"].values():
        yield from (name for name in stage["deps"] if name.endswith(".py") and not name.startswith("artifacts"))


@pytest.mark.pipeline
def test_a_runtime_takes_its_place_in_plan_and_table(planned: Path) -> None:
    assert set(example("kokoro_npu")) < set(_code_of(planned))
    for stage in ("fetch_weights", "export_duration", "reference_set", "decoder_weights"):
        run(planned, "-m", f"stages.{stage}")
    run(planned, "-m", "stages.export_decoder", f"frames={FRAMES}")
    run(planned, "-m", "pipelines.torchexport.export_torchexport", f"frames={FRAMES}")
    write_json(planned / f"reports/parity/{FRAMES}.json", {"fp32_snr_db_min": 100.0})
    run(planned, "-m", "pipelines.runtimes.runtimes")
    table = pd.read_csv(planned / "reports/runtimes.csv").set_index("runtime")
    assert table["snr_db_min"]["torchexport"] > 80
    assert "torchexport" in (planned / "reports/runtimes.md").read_text(encoding="utf-8")
