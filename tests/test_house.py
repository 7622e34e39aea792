"""The house: rooms in one order, each with a list of what is in it, and stages that depend on what they run."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "kokoro_npu"
ROOMS = sorted(path.parent for path in LIBRARY.glob("*/__init__.py"))
STAGES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]


def test_few_modules_lie_loose() -> None:
    loose = {path.stem for path in LIBRARY.glob("*.py")}
    assert loose == {"__init__", "errors", "files", "geometry", "machine", "versions"}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_lists_what_is_in_it_and_holds_no_code(room: Path) -> None:
    body = ast.parse((room / "__init__.py").read_text(encoding="utf-8")).body
    assert len(body) == 1
    listed = [
        line.split("``")[1] for line in (ast.get_docstring(ast.Module(body, [])) or "").splitlines() if line[:2] == "``"
    ]
    assert listed == sorted(path.stem for path in room.glob("*.py") if path.stem != "__init__")


def _contracts(root: Path) -> subprocess.CompletedProcess[str]:
    """What ``make lint`` says of the imports of the library below ``root``."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    environment = os.environ | {"PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("files.py", "", ""),
        ("files.py", "from kokoro_npu.page import figures", "Rooms"),
        ("aihub/journal.py", "from kokoro_npu.compile import options", "Rooms"),
        ("compile/options.py", "from kokoro_npu.compile import local", "circle"),
        ("host/steps.py", "import hydra", "neither DVC nor Hydra"),
    ],
)
def test_imports_go_one_way(tmp_path: Path, module: str, line: str, contract: str) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("kokoro_npu", "pipelines", "stages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / "kokoro_npu" / module, "a", encoding="utf-8") as stream:
        stream.write(f"\n{line}\n")
    done = _contracts(tmp_path)
    broken = [row for row in done.stdout.splitlines() if row.endswith("BROKEN")]
    assert done.returncode == bool(contract), done.stdout + done.stderr
    assert any(contract in row for row in broken) == bool(contract)


TORCH_MODEL = {"export-duration", "reference-set", "decoder-weights", "export-decoder", "calibrate", "parity-eval"}
"""Stages that build upstream's model from the weights; besides them fetch-weights, for the names of its tensors, and
device-profile, which times it."""
STATIC_DECODER = {"decoder-weights", "export-decoder", "calibrate", "parity-eval", "device-profile"}
COMPILER = {"op-audit", "qai-compile", "shared-binary", "device-profile"}
"""device-profile reads a binary with the compiler's library before it sends it to devices."""

# A file, and the stages of the default build that a change of it reruns. What follows them runs when they write
# something new.
READERS: list[tuple[str, set[str]]] = [
    ("weights/kmodel.py", TORCH_MODEL | {"fetch-weights", "device-profile"}),
    ("weights/writing.py", {"fetch-weights"}),
    ("weights/wheel.py", {"fetch-weights"}),
    ("weights/canonical.py", set(STAGES) - {"quantize"}),
    ("model/reference.py", {"reference-set", "parity-eval", "device-profile"}),
    ("model/decoder.py", STATIC_DECODER),
    ("model/prosody.py", {"export-duration"}),
    ("host/frontend.py", {"reference-set", "device-profile"}),
    ("corpus/recording.py", {"reference-set"}),
    ("quantize/calibrate.py", {"calibrate"}),
    ("quantize/apply.py", {"calibrate", "quantize"}),
    ("aihub/jobs.py", {"qai-compile", "device-profile"}),
    ("compile/local.py", {"qai-compile", "shared-binary"}),
    ("compile/worker.py", COMPILER),
    ("audit/placement.py", {"op-audit"}),
    ("evaluate/parity.py", {"parity-eval", "device-profile"}),
    ("evaluate/summary.py", {"summary"}),
    ("page/page.py", {"report"}),
    ("sdk/package.py", {"package"}),
    ("sensitivity/analysis.py", set()),
    ("runtimes/litert.py", set()),
]


@pytest.mark.parametrize(("file", "stages"), READERS, ids=[file for file, _ in READERS])
def test_a_file_reruns_the_stages_that_run_it(file: str, stages: set[str]) -> None:
    assert (LIBRARY / file).is_file()
    path = f"kokoro_npu/{file}"
    # A directory stands for all that lies in it; dvc.yaml is what the imports say (test_plan).
    found = {name for name, stage in STAGES.items() if any(f"{path}/".startswith(f"{dep}/") for dep in stage["deps"])}
    assert found == stages
