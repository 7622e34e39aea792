"""The canonical files: what is checked before they are written, and that their bytes repeat."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256, write_json
from kokoro_npu.weights import canonical, sources, writing
from kokoro_npu.weights.checkpoint import read_config
from kokoro_npu.weights.kmodel import tensor_table
from kokoro_npu.weights.wheel import upstream_config
from tests.tiny_model import tiny_config, tiny_voice

TABLE = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (4,)}


def _tensors() -> dict[str, np.ndarray]:
    return {name: np.full(shape, 0.5, np.float32) for name, shape in TABLE.items()}


def test_the_released_config_has_457_used_tensors() -> None:
    table = tensor_table(upstream_config({"a": 1}))
    assert len(table) == 457
    assert table["decoder.generator.ups.0.weight"] == (512, 256, 20)
    assert table["predictor.shared.weight_ih_l0_reverse"] == (1024, 640)
    assert not [name for name in table if "pooler" in name or ".norm." in name or "weight_g" in name]


def test_the_table_passes() -> None:
    writing.check_tensors(_tensors(), TABLE, "here")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda t: t.pop("a.bias"), "here: missing a.bias;"),
        (lambda t: t.update({"c.weight": t["a.bias"]}), "here: extra c.weight;"),
        (lambda t: t.update({"a.weight": t["a.weight"].T}), "misshapen a.weight is [3, 2], expected [2, 3];"),
        (lambda t: t["b.weight"].__setitem__(1, np.nan), "not finite b.weight;"),
    ],
    ids=["missing", "extra", "misshapen", "nan"],
)
def test_a_tensor_at_fault_is_named(fault: Callable[[dict[str, np.ndarray]], Any], message: str) -> None:
    tensors = _tensors()
    fault(tensors)
    with pytest.raises(KokoroNpuError, match=re.escape(message)):
        writing.check_tensors(tensors, TABLE, "here")


def test_every_fault_is_in_the_one_line() -> None:
    tensors = _tensors()
    del tensors["a.bias"]
    tensors["x"] = np.zeros(1, np.float32)
    tensors["b.weight"] = np.zeros(5, np.float32)
    with pytest.raises(KokoroNpuError) as error:
        writing.check_tensors(tensors, TABLE, "here")
    assert "missing a.bias; extra x; misshapen b.weight is [5], expected [4]" in str(error.value)


def test_voices_lose_upstreams_middle_axis() -> None:
    pack = tiny_voice(1)
    checked = writing.check_voices({"b": pack, "a": pack[:, 0]}, "here")
    assert list(checked) == ["a", "b"]
    assert checked["b"].shape == (510, 256)
    np.testing.assert_array_equal(checked["b"], pack[:, 0])


@pytest.mark.parametrize("shape", [(511, 1, 256), (510, 1, 128), (510,)])
def test_a_misshapen_voice_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(KokoroNpuError, match="voice af_x is"):
        writing.check_voices({"af_x": np.zeros(shape, np.float32)}, "here")


def _refused(config: dict[str, Any], folder: Path, message: str) -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(KokoroNpuError, match=message):
        read_config(folder / "config.json")


def test_a_config_of_another_geometry_is_refused(tmp_path: Path) -> None:
    config = tiny_config()
    config["istftnet"]["gen_istft_hop_size"] = 256
    _refused(config, tmp_path, r"istftnet.gen_istft_hop_size is 256, .* built for 5")


@pytest.mark.parametrize("key", ["plbert", "vocab", "n_token", "max_dur"])
def test_a_config_without_a_key_names_it(key: str, tmp_path: Path) -> None:
    config = tiny_config()
    del config[key]
    _refused(config, tmp_path, rf"key {key}[\w.]* is missing")


def test_write_is_deterministic_and_readable_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in tensor_table(tiny_config()).items()}
    voices = {"b": tiny_voice(1), "a": tiny_voice(2)}
    source = {"source": "wheel", "dither": True}
    writing.write(tmp_path / "x", tensors, voices, tiny_config(), source)
    shuffled = dict(reversed(tensors.items()))
    writing.write(tmp_path / "y", shuffled, dict(reversed(voices.items())), tiny_config(), source)

    for name in canonical.FILES:
        assert sha256(tmp_path / "x" / name) == sha256(tmp_path / "y" / name), name
    loaded = canonical.load_tensors(tmp_path / "x")
    assert loaded.keys() == tensors.keys()
    np.testing.assert_array_equal(loaded["bert_encoder.weight"], tensors["bert_encoder.weight"])
    assert canonical.load_voices(tmp_path / "x")["a"].shape == (510, 256)
    assert canonical.load_config(tmp_path / "x") == tiny_config()
    assert canonical.load_source(tmp_path / "x")["tensors"] == len(tensors)
    assert canonical.source_label(tmp_path / "x") == "wheel+dither"


def test_nothing_is_written_when_a_check_fails(tmp_path: Path) -> None:
    tensors = {name: np.zeros(shape, np.float32) for name, shape in tensor_table(tiny_config()).items()}
    with pytest.raises(KokoroNpuError, match="voice a is"):
        writing.write(tmp_path, tensors, {"a": np.zeros(3)}, tiny_config(), {"source": "file"})
    assert not list(tmp_path.iterdir())


def test_readers_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match="does not exist; run `dvc repro fetch-weights`"):
        canonical.load_tensors(tmp_path)
    (tmp_path / canonical.MODEL).write_bytes(b"cut")
    with pytest.raises(KokoroNpuError, match=r"model\.safetensors is damaged"):
        canonical.load_tensors(tmp_path)
    (tmp_path / canonical.CONFIG).write_text("{")
    with pytest.raises(KokoroNpuError, match=r"config\.json is damaged"):
        canonical.load_config(tmp_path)


def test_reading_them_loads_no_model_code() -> None:
    """Most stages read a label or a vocabulary only."""
    code = "import sys, kokoro_npu.weights.canonical; sys.exit('torch' in sys.modules or 'kokoro' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_labels(tmp_path: Path) -> None:
    for source in sources.SOURCES:
        write_json(tmp_path / canonical.SOURCE, {"source": source, "dither": False})
        assert canonical.source_label(tmp_path) == source


@pytest.mark.parametrize("source", ["weel", None, "dhub"])
def test_an_unknown_source(source: str | None, tmp_path: Path) -> None:
    with pytest.raises(
        KokoroNpuError, match=r"weights.source .* is unknown; (did you mean (wheel|hub)\?|known: file, hub, wheel)"
    ):
        sources.fetch({"source": source}, tmp_path / "out", tmp_path / "cache")
    assert not list(tmp_path.iterdir())
