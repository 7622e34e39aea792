"""``kokoro-npu inspect``, on a binary that takes the compiler a second."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kokoro_npu.cli.main import cli
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.local import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.errors import KokoroNpuError
from tests.small_graphs import decoder_like

pytestmark = pytest.mark.qnn


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := toolchain.missing_reason():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("inspect")
    model, target = decoder_like(directory / "m.onnx"), Target("sm8650", "", 57, 75, 8)
    compile_decoder(model, 1, Spec("fp16", target, CompileSettings(memory_reserve_gib=0.1)), directory / "out")
    (path,) = (directory / "out").glob("*.bin")
    return path


def test_a_binary_tells_its_chip_graphs_and_memory(binary: Path) -> None:
    shown = CliRunner().invoke(cli, ["inspect", str(binary)], catch_exceptions=False)
    assert shown.exit_code == 0
    for text in (
        "soc_model 57, htp_arch 75, QAIRT v2.",
        "1 graph\n",
        "level 2, VTCM 8 MB",
        "1 x 16 x 1 x 64",
        "float32",
    ):
        assert text in shown.output
    told = json.loads(CliRunner().invoke(cli, ["inspect", "--json", str(binary)]).output)
    (graph,) = told["graphs"]
    assert graph["inputs"]["x"] == [[1, 16, 1, 64], "float32"]
    assert (told["soc_model"], told["htp_arch"], graph["optimization_level"]) == (57, 75, 2)
    memory = graph["memory"]
    # Inputs, output: four bytes a number; weights: two bytes each at least, of which the graph has more than 1,000.
    numbers = sum(a * b * c * d for a, b, c, d in [(1, 16, 1, 64), (1, 1, 1, 64), (1, 6, 1, 1)]) + 8 + 128
    assert memory["io"] >= 4 * numbers
    assert memory["const"] > 2_000
    assert 0 < memory["op_data"] < binary.stat().st_size * 10
    assert memory["const"] < binary.stat().st_size


@pytest.mark.parametrize("keep", [0, 1, 100, 4096, -1])
def test_a_truncated_or_foreign_file_is_one_line(binary: Path, tmp_path: Path, keep: int) -> None:
    data = binary.read_bytes()
    path = tmp_path / "cut.bin"
    path.write_bytes(data[:keep])
    with pytest.raises(KokoroNpuError, match=r"cut\.bin: cannot be read back: .*[0-9]") as caught:
        CliRunner().invoke(cli, ["inspect", str(path)], catch_exceptions=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"junk" * 1000, bytes(4096), None])
def test_junk_and_nothing_are_one_line(binary: Path, tmp_path: Path, content: bytes | None) -> None:
    del binary
    path = tmp_path / "junk.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KokoroNpuError, match=r"junk\.bin: (cannot be read back|no such context binary)") as caught:
        CliRunner().invoke(cli, ["inspect", str(path)], catch_exceptions=False)
    assert "\n" not in str(caught.value)
