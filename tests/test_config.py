"""The plan's rules, on both ways in: composition (dvc exp run -S) and a stage that reads params.yaml."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from hydra_plugins import plan
from kokoro_npu.errors import KokoroNpuError
from tools.plan import compose

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def params() -> Any:
    return yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("overrides", "buckets"),
    [
        (["bucket.frames=1536"], [1536]),
        (["bucket.frames=[400,128,400]"], [128, 400]),
        (["bucket=shipped"], [120, 400, 1800]),
        (["bucket=requirements"], [512, 1536, 6144]),
        (["bucket=coreml"], [200, 400, 600]),
    ],
)
def test_buckets_are_a_sorted_list_without_repetitions(overrides: list[str], buckets: list[int]) -> None:
    assert yaml.safe_load(compose(ROOT, overrides))["buckets"] == buckets


@pytest.mark.parametrize(
    ("group", "option"),
    [
        (path.parent.name, path.stem)
        for group in ("weights", "bucket", "quantize", "target", "compile")
        for path in sorted((ROOT / "conf" / group).glob("*.yaml"))
    ],
)
def test_every_option_of_every_group_is_a_valid_plan(group: str, option: str) -> None:
    composed = yaml.safe_load(compose(ROOT, [f"{group}={option}"]))
    chosen = yaml.safe_load((ROOT / "conf" / group / f"{option}.yaml").read_text(encoding="utf-8"))
    assert composed[group] == chosen


BAD_OVERRIDES = {
    "bucket.frames=0": "bucket.frames is 0; it must be an integer of at least 2",
    "bucket.frames=-120": "bucket.frames is -120",
    "bucket.frames=abc": "bucket.frames is 'abc'",
    "bucket.frames=1.5": "bucket.frames is 1.5",
    "bucket.frames=true": "bucket.frames is True",
    "bucket.frames=null": "bucket.frames is None",
    "bucket.frames=[]": r"bucket.frames is \[\]",
    "bucket.frames=[120,0]": r"bucket.frames is \[120, 0\]",
    "bucket.framez=1": "Could not override 'bucket.framez'",
    "+bucket.framez=1": "bucket.framez is not a parameter; did you mean frames",
    "bucket=nosuch": "Could not find 'bucket/nosuch' Available options in 'bucket': coreml requ",
    "weights=nosuch": "Could not find 'weights/nosuch'",
    "weights.source=nosuch": "weights.source is 'nosuch'; it must be one of file, hub, wheel",
    "weights.source=hub": "choose it with its options: weights=hub",
    "quantize.precision=w9a16": "it must be one of fp16, mixed, w8a16, w8a8",
    "quantize.per_channel=1": "quantize.per_channel is 1; it must be true or false",
    "compile.optimization_level=4": "it must be an integer from 1 to 3",
    "target=sm8560": "Could not find 'target/sm8560' Available options in 'target': sm8550 sm8650 sm8750 sm8850",
    "chips=[sm8750,sm8560]": "'sm8560' is not in the table of chips; did you mean sm8",
    "target.name=sm8560": "'sm8560' is not in the table of chips; did you mean sm8",
    "target.vtcm_mb=16": "target.vtcm_mb is 16; sm8650 has 8 MB",
    "target.htp_arch=79": "target.htp_arch is 79; sm8650 has 75",
    "export.opset=11": "export.opset is 11; it must be an integer of at least 17",
    "parity.gates.fp32_snr_db_min=high": "parity.gates.fp32_snr_db_min is 'high'; it must be a number",
    "+parity.gates.fp33_snr_db_min=80": "fp33_snr_db_min is not a gate, .* variants torch, fp32, quantized; fig",
    "+quantize.gates.quantized_snr_min=30": "quantized_snr_min is not a gate",
    "listening.precisions.w8a8.weight_bits=7": "listening.precisions.w8a8.weight_bits is 7; it must be one of 8, 16",
    "+runtimes.gates.newcomer.fp32_snr_db=80": "fp32_snr_db is not a gate, <precision>_<figure>_min or _max",
    "+runtimes.gates.newcomer.fp32_snr_db_min=high": "it must be a number",
    "+runtimes.gates.New.fp32_snr_db_min=1": "New is not the name of a runtime",
}


@pytest.mark.parametrize("override", BAD_OVERRIDES)
def test_a_bad_override_is_refused_in_one_line(override: str) -> None:
    with pytest.raises((KokoroNpuError, HydraException, OmegaConfBaseException)) as caught:
        compose(ROOT, [override])
    line = plan.one_line(caught.value)
    assert re.search(BAD_OVERRIDES[override], line)
    assert "\n" not in line
    assert len(line) < 250


def test_a_further_runtime_may_have_gates() -> None:
    composed = yaml.safe_load(compose(ROOT, ["+runtimes.gates.newcomer.fp32_snr_db_min=80"]))
    assert composed["runtimes"]["gates"]["newcomer"] == {"fp32_snr_db_min": 80}


@pytest.mark.parametrize("gate", ["parity.gates.fp32_magspec_corr_min", "quantize.gates.quantized_band_db_max"])
def test_a_gate_is_added_by_its_name_alone(gate: str) -> None:
    section, _, name = gate.split(".")
    assert yaml.safe_load(compose(ROOT, [f"+{gate}=0.99"]))[section]["gates"][name] == 0.99


def test_the_composition_passes_the_rules(params: Any) -> None:
    plan.check(params)


def _leaves(rules: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(rules, dict):
        return [path]
    return [leaf for key, inner in rules.items() for leaf in _leaves(inner, (*path, key))]


@pytest.mark.parametrize("path", _leaves({key: rule for key, rule in plan.RULES.items() if rule}))
def test_every_rule_refuses_a_missing_a_misspelt_and_a_wrong_value(params: Any, path: tuple[str, ...]) -> None:
    *parents, last = path
    dotted = ".".join(path)

    def section() -> Any:
        inner = params
        for parent in parents:
            inner = inner[parent]
        return inner

    value = section().pop(last)
    with pytest.raises(KokoroNpuError, match=f"{re.escape(dotted)} is missing"):
        plan.check(params)
    section()[f"{last}x"] = value
    with pytest.raises(
        KokoroNpuError, match=f"{re.escape(dotted)}x is not a parameter; did you mean {re.escape(last)}"
    ):
        plan.check(params)
    del section()[f"{last}x"]
    section()[last] = None
    with pytest.raises(KokoroNpuError, match=f"{re.escape(dotted)} is None; it must be"):
        plan.check(params)


def test_a_section_that_is_no_mapping_is_named(params: Any) -> None:
    with pytest.raises(KokoroNpuError, match="quantize is 'w8a16'; it must hold precision"):
        plan.check(params | {"quantize": "w8a16"})
    with pytest.raises(KokoroNpuError, match="weights is 'wheel'; it must hold source"):
        plan.check(params | {"weights": "wheel"})


# A stage in a directory of its own, under the real decorator.
_STAGE = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from stages._config import stage
heavy = {{"torch", "onnxruntime", "onnx", "dvc"}} & set(sys.modules)
from kokoro_npu.errors import KokoroNpuError

@stage
def main(cfg):
    {{body}}

main()
"""


def run_stage(where: Path, params: Any, body: str, *args: str) -> "subprocess.CompletedProcess[str]":
    (where / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    (where / "script.py").write_text(_STAGE.replace("{body}", body), encoding="utf-8")
    command = [sys.executable, "script.py", *args]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=60)


def assert_one_line(run: "subprocess.CompletedProcess[str]", pattern: str) -> None:
    assert run.returncode == 1, run
    assert re.fullmatch(rf"error: [^\n]*{pattern}[^\n]*\n", run.stderr), run.stderr
    assert run.stdout == ""


def test_a_stage_reads_params_and_its_bucket_and_leaves_nothing_behind(tmp_path: Path, params: Any) -> None:
    body = "print(cfg.frames, cfg.quantize.gates.quantized_snr_db_min, list(cfg.buckets), heavy)"
    run = run_stage(tmp_path, params, body, "frames=120")
    gate = params["quantize"]["gates"]["quantized_snr_db_min"]
    assert (run.stdout, run.stderr) == (f"120 {gate} {params['buckets']} set()\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["params.yaml", "script.py"]


@pytest.mark.parametrize(
    ("key", "value", "pattern"),
    [
        ("bucket", {"frames": 0}, "bucket.frames is 0"),
        ("bucket", {"frames": "abc"}, "bucket.frames is 'abc'"),
        ("bucket", {"framez": 120}, "bucket.framez is not a parameter; did you mean frames"),
        ("buckets", [1.5], "buckets is .1.5."),
        ("buckets", [7], r"buckets \[7\] does not follow from bucket.frames"),
        ("weights", {"source": "nosuch"}, "weights.source is 'nosuch'; it must be one of file, hub, wheel"),
        ("quantise", {}, "quantise is not a parameter; did you mean quantize"),
    ],
)
def test_a_stage_refuses_params_edited_by_hand(tmp_path: Path, params: Any, key: str, value: Any, pattern: str) -> None:
    assert_one_line(run_stage(tmp_path, params | {key: value}, "print(1)"), pattern)


@pytest.mark.parametrize("frames", ["0", "abc", "1.5", "[120]", "true"])
def test_a_stage_refuses_a_bad_bucket(tmp_path: Path, params: Any, frames: str) -> None:
    assert_one_line(run_stage(tmp_path, params, "print(1)", f"frames={frames}"), "frames is ")


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ("raise KokoroNpuError('what,\\n  where')", "what, where"),
        ("cfg.audit.nosuch", "nosuch"),
        ("cfg.frames", "frames"),
        ("cfg.seed = 1", "read-only"),
    ],
)
def test_a_stage_fails_in_one_line(tmp_path: Path, params: Any, body: str, pattern: str) -> None:
    assert_one_line(run_stage(tmp_path, params, body), pattern)


def test_a_defect_keeps_its_traceback(tmp_path: Path, params: Any) -> None:
    run = run_stage(tmp_path, params, "raise ValueError('defect')")
    assert run.returncode == 1
    assert "Traceback" in run.stderr
    assert "ValueError: defect" in run.stderr


def test_a_stage_takes_the_library_of_its_own_tree(tmp_path: Path) -> None:
    """A queued experiment runs in a copy, while the environment has the library of the clone it was made in."""
    (tmp_path / "kokoro_npu").mkdir()
    (tmp_path / "kokoro_npu/__init__.py").write_text("raise ImportError('the library of another tree')\n")
    command = [sys.executable, "-m", "stages._config"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
