"""The reviewer's page: whole without a network, the same bytes each time, and what got worse on top."""

import base64
import io
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile
from PIL import Image

from kokoro_npu.audio.wav import read_wav
from kokoro_npu.build.labels import FP32, QUANTIZED
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate.gates import check_gates
from kokoro_npu.files import write_json
from kokoro_npu.page import baseline, charts, figures, sound
from kokoro_npu.runtimes.table import COLUMNS
from tests.page_case import FRAMES, GATES, make_page, measured, reports, write_build, write_reports


class _Elements(HTMLParser):
    """Start tags with their attributes, and that every tag is closed in order."""

    VOID = ("meta", "link", "img", "br", "path", "use", "rect", "circle", "line", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def git(root: Path, *args: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@invalid"]
    subprocess.run(["git", "-C", str(root), *who, *args], check=True, capture_output=True)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    write_build(tmp_path)
    return tmp_path


@pytest.fixture
def committed(build: Path) -> Path:
    """A build whose reports are committed."""
    git(build, "init", "-q")
    git(build, "add", "reports")
    git(build, "commit", "-q", "-m", "baseline")
    return build


def test_the_page_needs_nothing_but_itself(build: Path) -> None:
    page = _Elements()
    page.feed(html := make_page(build))
    assert page.open == []
    loads = [attrs[name] for _, attrs in page.found for name in ("src", "href", "xlink:href") if name in attrs]
    assert loads
    assert [address for address in loads if not str(address).startswith(("data:", "#"))] == []
    assert not re.search(r"@import|url\((?!#)|<script|http-equiv", html)
    ids = [attrs["id"] for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    for target in re.findall(r'(?:url\(|href=")#([\w-]+)', html):
        assert target in ids


def test_the_same_build_gives_the_same_bytes(build: Path) -> None:
    def written() -> dict[str, bytes]:
        make_page(build)
        files = [*(build / "reports").glob("index.*"), *(build / "reports/plots").iterdir()]
        return {path.name: path.read_bytes() for path in files}

    first = written()
    assert sorted(first) == ["index.html", "index.md", "size.svg", "snr.svg", "time.svg"]
    assert written() == first


def test_figures_gates_reasons_and_ops_are_told(build: Path) -> None:
    html = make_page(build)
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>", "", html, flags=re.DOTALL)
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "w8a16 ONNX, SNR, dB ≥ 20 29.9 ✓ 20.4 ✓" in words
    assert "1 of 2 compiled for Hexagon" in words
    assert "400 frames: Not compiled: too wide: tensor &lt;noise&gt; is 48008 wide" in words
    assert "3 kinds of ops, the same in every bucket" in words
    assert "Conv full 5 5 10 0" in words
    assert "✗" not in words
    assert "69.0 MB" in words
    markdown = (build / "reports/index.md").read_text(encoding="utf-8")
    assert "| w8a16 ONNX, SNR, dB | ≥ 20 | 29.9 | 20.4 |" in markdown
    assert "\n\n\n" not in markdown
    assert "Not compiled: too wide: tensor <noise>" in markdown


def test_a_missed_gate_is_marked(build: Path) -> None:
    measured(build, 60, "usual", QUANTIZED, snr_db=19.99)
    write_reports(build, 60, parity__quantized_snr_db_min=19.99)
    assert 'class="n missed">20.0 <span class="bad">✗' in make_page(build)
    assert "20.0 **missed** | 20.4 |" in (build / "reports/index.md").read_text(encoding="utf-8")


def test_an_utterance_that_the_gate_leaves_out_shows_no_red(build: Path) -> None:
    """As in the real bucket of 45 s, of which the shortest utterance fills a fortieth."""
    measured(build, 400, "short", QUANTIZED, snr_db=9.9)
    write_reports(build, 400, parity__quantized_snr_db_min=9.9)
    table = pd.read_csv(build / "artifacts/parity/400.csv").assign(duration_mismatches=0)
    check_gates(table, GATES, "here", fill_min=0.12)
    html = make_page(build, fill_min=0.12)
    assert '29.9 (9.9) <span class="ok">✓' in html
    assert "✗" not in html
    with pytest.raises(KokoroNpuError, match="short misses quantized_snr_db_min"):
        check_gates(table, GATES, "here", fill_min=0.1)
    assert '<span class="bad">✗' in make_page(build, fill_min=0.1)


def test_a_gate_of_the_plan_is_on_the_page(build: Path) -> None:
    measured(build, 400, "long", FP32, magspec_corr=0.98)
    html = make_page(build, gates=GATES | {"fp32_magspec_corr_min": 0.99})
    words = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    assert "fp32 ONNX, magnitude-spectrogram correlation ≥ 0.99 1 ✓ 0.98 ✗" in words


def test_the_table_of_runtimes_is_shown_if_it_is_there(build: Path) -> None:
    assert "Other runtimes" not in make_page(build)
    plain = (build / "reports/index.md").read_bytes()
    table = pd.DataFrame(columns=["runtime", "frames", "precision", *COLUMNS])
    table.loc[0] = pd.Series(
        {"runtime": "litert", "frames": 60, "precision": "int8", "bytes": 54_900_000, "snr_db_min": 33.7}
    )
    table.to_csv(build / "reports/runtimes.csv", index=False)
    write_json(build / "reports/runtimes.json", {"weights_source": "official"})
    page = _Elements()
    page.feed(html := make_page(build))
    assert page.open == []
    words = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    assert "weights official" in words
    assert "litert 60 int8 54.9 33.7 – –" in words
    markdown = (build / "reports/index.md").read_text(encoding="utf-8")
    assert "| litert | 60 | int8 | 54.9 | 33.7 | – |" in markdown
    assert "\n\n\n" not in markdown
    (build / "reports/runtimes.csv").unlink()
    make_page(build)
    assert (build / "reports/index.md").read_bytes() == plain


def test_players_hold_the_wavs_bit_for_bit(build: Path) -> None:
    html = make_page(build)
    # `usual` of the smallest bucket, and the worst of the build; `long` does not fit a committed page.
    titles = re.findall(r"<h3>(\w+) in the bucket of (\d+)", html)
    assert titles == [("usual", "60"), ("short", "400")]
    players = re.findall(r'<audio [^>]*src="data:audio/flac;base64,([^"]+)"', html)
    heard = [soundfile.read(io.BytesIO(base64.b64decode(content)), dtype="float32")[0] for content in players]
    kept = [
        read_wav(build / f"artifacts/parity/{frames}/{utterance}.{variant}.wav")
        for utterance, frames in titles
        for variant in ("reference", "fp32", "quantized")
    ]
    assert [np.array_equal(a, b) for a, b in zip(heard, kept, strict=True)] == [True] * 6


def test_a_spectrogram_shows_a_tone_where_it_is() -> None:
    tone = np.sin(2 * np.pi * 3000 * np.arange(24_000) / 24_000).astype(np.float32)
    picture = Image.open(io.BytesIO(sound.spectrogram(tone, loudest=256.0)))
    levels = np.asarray(picture)
    assert levels.shape == (128, 91)
    assert levels[:, 40].argmax() == 127 - 3000 * 128 // 12_000 + 1
    assert levels[:, 40].max() == 31
    quiet = np.asarray(Image.open(io.BytesIO(sound.spectrogram(tone * 10**-1.5, loudest=256.0))))
    assert quiet[:, 40].max() == round(31 * (1 - 30 / 80))


def test_a_chart_draws_lengths_in_proportion() -> None:
    svg = charts.bars("x", ["a", "b"], {"one": [10.0, 20.0], "two": [None, 5.0]}, "dB", gates={"one": 15.0})
    widths = []
    for path in re.findall(r'<path d="([^"]+)" clip-path', svg):
        xs = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", path)]
        widths.append(max(xs) - min(xs))
    filled = [w for w in widths if w > 0]
    assert filled[1] / filled[0] == pytest.approx(2, rel=1e-3)
    assert ">none<" in svg
    assert "var(--gate, #b3261e)" in svg
    assert "#0102" not in svg


def test_nothing_worse_is_said_too(committed: Path) -> None:
    html = make_page(committed)
    assert "No figure is worse than in the baseline commit (HEAD)" in html
    assert "No figure is worse" in (committed / "reports/index.md").read_text(encoding="utf-8")


def test_without_git_there_is_no_baseline(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "There is no baseline commit" in make_page(build)


def test_an_unknown_revision_is_one_line(committed: Path) -> None:
    with pytest.raises(KokoroNpuError, match="git knows no revision 'nosuch'"):
        make_page(committed, "nosuch")


def test_what_got_worse_stands_on_top(committed: Path) -> None:
    write_reports(
        committed, 60, parity__quantized_snr_db_min=25.5, profile__rtf_p50=0.21, compile__binary_bytes=69_500_000
    )
    html = make_page(committed)
    assert html.index("1 figure is worse than in the baseline commit (HEAD)") < html.index("<h2>Parity")
    assert re.search(r"60 frames</td><td>w8a16 ONNX, SNR</td><td[^>]*>29.9 dB</td><td[^>]*>25.5 dB", html)
    markdown = (committed / "reports/index.md").read_text(encoding="utf-8")
    assert "| 60 frames | w8a16 ONNX, SNR | 29.9 dB | 25.5 dB |" in markdown


def test_a_dropped_bucket_is_worse(committed: Path) -> None:
    html = make_page(committed, frames=FRAMES[:1])
    assert re.search(r"400 frames</td><td>bucket</td><td[^>]*>built</td><td[^>]*>not built", html)


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"parity__fp32_snr_db_min": 104.9}, "fp32 ONNX, SNR"),
        ({"parity__quantized_logmel_mae_max": 0.2}, "w8a16 ONNX, log-mel distance"),
        ({"parity__utterances": 1}, "evaluation utterances that fit"),
        ({"audit__blocking_ops": 1}, "blocking ops"),
        ({"audit__nodes_on_npu": 49}, "nodes on the NPU, w8a16"),
        ({"audit__nodes_on_npu": None}, "nodes on the NPU, w8a16"),
        ({"compile__compiled": False, "compile__binary_bytes": 0}, "compiled"),
        ({"compile__binary_bytes": 75_000_000}, "context binary"),
        ({"profile__rtf_p50": 0.4}, "fp32 time ÷ PyTorch's, same run"),
        ({"profile__gmacs": 79.0}, "GMAC"),
    ],
)
def test_each_kind_of_loss_is_found_alone(change: dict[str, Any], label: str) -> None:
    def build_of(**changes: Any) -> dict[str, dict[int, dict[str, Any]]]:
        return {kind: {60: report} for kind, report in reports(**changes).items()}

    assert [item.label for item in baseline.worse(build_of(), build_of(**change), "w8a16")] == [label]
    better = baseline.worse(build_of(**change), build_of(), "w8a16")
    assert better == []


def test_times_of_a_slower_machine_are_no_loss() -> None:
    before = {kind: {60: report} for kind, report in reports().items()}
    slow = reports(profile__rtf_p50=2.0, profile__quantized_rtf_p50=3.0, profile__torch_rtf_p50=2.5)
    assert baseline.worse(before, {kind: {60: report} for kind, report in slow.items()}, "w8a16") == []


def test_another_build_is_named() -> None:
    before = {kind: {60: report} for kind, report in reports().items()}
    after = {kind: {60: report | {"precision": "fp16"}} for kind, report in reports().items()}
    assert baseline.other_build(before, after) == ["precision w8a16 → fp16"]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "dB", "–"),
        (True, "", "yes"),
        (69_619_712, "bytes", "69.6 MB"),
        (8_532_926_464, "bytes", "8.5 GB"),
        (0.999398, "", "0.99940"),
        (1.0, "", "1"),
        (105.17752, "dB", "105.2 dB"),
        (0.173584, "dB", "0.174 dB"),
        (5736, "", "5736"),
        (5735 / 5736, "%", "99.98 %"),
    ],
)
def test_figures_for_people(value: Any, unit: str, shown: str) -> None:
    assert figures.text(value, unit) == shown
