"""Whole-model variants on a narrow model: what is written, what is held fixed, and what the figures say."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kokoro import KModel

from kokoro_npu.build import places
from kokoro_npu.corpus.recording import record
from kokoro_npu.corpus.reference_set import CALIBRATION, EVALUATION, ReferenceUtterance, load_reference_set
from kokoro_npu.corpus.utterances import Utterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.reading import read_model
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.model.export import export_decoder
from kokoro_npu.model.export_cpu import export_duration, export_prosody
from kokoro_npu.variants import whole_model
from kokoro_npu.variants.comparison import OTHER_DRAW, compare, summarize
from kokoro_npu.variants.conversion import variant
from kokoro_npu.variants.verification import verify
from kokoro_npu.variants.whole_model import GIVEN, MONOLITH, MONOLITH_EXACT, OWN, SplitModel
from pipelines.variants import variants
from tests.tiny_model import tiny_voice
from tools.plan import ROOT, compose

FRAMES = (24, 32)
SEED = 3
NAMES = ("q8f16",)
"""The others differ in how the CPU models compute (tests/test_storage.py), and in decoders that other stages make."""
CORPUS = [
    Utterance("c1", CALIBRATION, "v", 1.0, "one", "abc"),
    Utterance("c2", CALIBRATION, "v", 1.0, "two", "hgfe"),
    Utterance("e1", EVALUATION, "v", 1.0, "three", "dabe"),
    Utterance("e2", EVALUATION, "v", 0.8, "four", "gah f"),
]


@pytest.fixture(scope="module")
def floats(narrow: KModel, tmp_path_factory: pytest.TempPathFactory) -> SplitModel:
    """The float model of a build; the reference set lies beside it."""
    root = tmp_path_factory.mktemp("build")
    built = SplitModel(root / "cpu", root / "decoder", FRAMES)
    write_onnx(built.duration, export_duration(narrow))
    write_onnx(built.prosody, export_prosody(narrow))
    for frames in FRAMES:
        write_onnx(places.decoder(built.decoders, frames), export_decoder(narrow, Bucket(frames)))
    voices = {"v": 3 * tiny_voice(0)[:, 0]}
    record(CORPUS, narrow, voices, Frontend(built.duration, built.prosody), root / "reference_set", SEED)
    return built


def _recorded(floats: SplitModel, part: str) -> list[ReferenceUtterance]:
    return list(load_reference_set(floats.cpu.parent / "reference_set", part))


def _compare(floats: SplitModel, names: Sequence[str], out: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    calibration, evaluation = (_recorded(floats, part) for part in (CALIBRATION, EVALUATION))
    monolith = Path("there/is/no.onnx")
    return compare(floats, floats.decoders, monolith, calibration, evaluation, names, runs=2, seed=SEED, out_dir=out)


@pytest.fixture(scope="module")
def compared(
    floats: SplitModel, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pd.DataFrame, pd.DataFrame, SplitModel]:
    """The recordings, the models' table, and the variant that was written."""
    out = tmp_path_factory.mktemp("variants")
    return *_compare(floats, NAMES, out), SplitModel(out / "q8f16", out / "q8f16", FRAMES)


def _row(table: pd.DataFrame, model: str) -> pd.Series:
    return table[table["model"] == model].iloc[0]


def test_every_variant_has_its_figures(compared: tuple[pd.DataFrame, pd.DataFrame, SplitModel]) -> None:
    utterances, table, _ = compared
    assert list(table["model"]) == ["fp32", *NAMES, OTHER_DRAW]
    assert (utterances.groupby("model").size() == 2 * 2).all()  # two utterances, two sources
    assert not table[table["model"].isin(NAMES)].isna().any().any()
    assert _row(table, OTHER_DRAW)["own_logmel_mae_mean"] > 10 * _row(table, "fp32")["own_logmel_mae_mean"]
    summary = summarize(table)
    for name in NAMES:
        size = summary[f"{name}_bytes"]
        assert size == _row(table, name)["bytes"]
        assert isinstance(size, int)
    assert "best_variant" not in summary  # there was no monolith to be better than


@pytest.mark.parametrize(("given", "own", "nearer", "best"), [(2.0, 1.0, 1, "small"), (0.1, 1.0, 0, "")])
def test_a_variant_must_beat_the_better_of_the_monoliths_rows(given: float, own: float, nearer: int, best: str) -> None:
    monoliths = [(MONOLITH, None, 9, 3.0, 0.9), (MONOLITH_EXACT, None, 9, given, own)]
    variants = [("small", "float", 5, 0.5, 0.8), ("smaller", "static", 4, 0.5, 0.95)]
    rows = [("fp32", None, None, 0.0, 0.0), *variants, *monoliths]
    means = [f"{source}_logmel_mae_mean" for source in (GIVEN, OWN)]
    table = pd.DataFrame(rows, columns=["model", "arithmetic", "bytes", *means])
    for column in ("given_snr_db_min", "tokens_moved", "frames_moved", "cpu_time_both"):
        table[column] = 1
    found = summarize(table)
    assert (found["nearer_than_monolith"], found["best_variant"]) == (nearer, best)


def test_the_float_model_is_the_reference(compared: tuple[pd.DataFrame, pd.DataFrame, SplitModel]) -> None:
    _, table, _ = compared
    snr = {name: _row(table, name)["given_snr_db_min"] for name in ("fp32", *NAMES)}
    assert snr["fp32"] > 90
    # The random model amplifies what the trained one does not.
    assert 0 < snr["q8f16"] < 40
    assert _row(table, "fp32")["tokens_moved"] == 0


def test_sizes_are_those_of_the_files(
    floats: SplitModel, compared: tuple[pd.DataFrame, pd.DataFrame, SplitModel]
) -> None:
    _, table, written = compared
    row = _row(table, "q8f16")
    expected = sum(path.stat().st_size for path in written.cpu.iterdir() if path.suffix != ".json")
    assert row["bytes_all_buckets"] == expected
    assert row["bytes"] == expected - places.decoder(written.decoders, max(FRAMES)).stat().st_size
    assert row["bytes_cpu_models"] < 0.27 * floats.cpu_bytes()


def test_one_weight_file_serves_all_buckets(compared: tuple[pd.DataFrame, pd.DataFrame, SplitModel]) -> None:
    *_, written = compared
    sizes = [places.decoder(written.decoders, frames).stat().st_size for frames in FRAMES]
    weights = (written.decoders / places.SHARED_WEIGHTS).stat().st_size
    decoder = read_model(places.decoder(written.decoders, FRAMES[0]))
    assert abs(sizes[0] - sizes[1]) < 5000
    assert weights > 0.8 * (sum(tensor.ByteSize() for tensor in decoder.graph.initializer) - sizes[0])


def test_given_durations_and_source_hold_what_they_say(floats: SplitModel) -> None:
    """A model whose durations are all wrong keeps the reference's time; given its source, the float model is exact."""
    items = _recorded(floats, EVALUATION)
    truth = whole_model.predicted_durations(floats.duration, items)
    rows = whole_model.speak_split("m", floats, items, truth, SEED)
    snr = {(row["utterance"], row["source"]): row["snr_db"] for row in rows}
    for item in items:
        for kind in (GIVEN, OWN):
            assert snr[item.id, kind] > 80
    longer = {name: durations + 1 for name, durations in truth.items()}
    moved = whole_model.moved_durations(truth, longer)
    tokens = sum(durations.size for durations in truth.values())
    assert moved == {
        "tokens": tokens, "tokens_moved": tokens, "frames_moved": tokens, "frames_moved_max": 1, "utterances_moved": 2,
    }  # fmt: skip


def test_verify_speaks_with_a_decoder_of_any_kind(
    floats: SplitModel, compared: tuple[pd.DataFrame, pd.DataFrame, SplitModel], narrow: KModel
) -> None:
    item = _recorded(floats, EVALUATION)[0]
    frontend = Frontend(floats.duration, floats.prosody)
    arguments = (item.tokens, item.voice, item.speed, SEED, frontend, narrow)
    found = {
        kind: verify(places.decoder(model.decoders, max(FRAMES)), *arguments)
        for kind, model in (("float", floats), ("int8", compared[2]))
    }
    for each in found.values():
        assert (each.kind, each.moved_tokens) == ("decoder", 0)
        assert len(each.audio) == len(each.reference) == 600 * item.frames
    snr = {kind: each.figures()["snr_db"] for kind, each in found.items()}
    assert snr["float"] > 80 > 40 > snr["int8"]
    assert found["float"].figures()["logmel_mae"] < 0.01 < found["int8"].figures()["logmel_mae"]
    with pytest.raises(KokoroNpuError, match=r"kokoro_duration\.onnx: its inputs are tokens, token_length"):
        verify(floats.duration, *arguments)


def test_a_short_recording_counts_as_silence_where_it_is_missing() -> None:
    reference = np.ones(6000, np.float32)
    assert whole_model.measured(reference, reference[:3000])["snr_db"] == pytest.approx(10 * np.log10(2), abs=1e-6)


def test_unknown_variants_and_empty_comparisons(floats: SplitModel, tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"variant 'q8f61' does not exist; did you mean .*q8f16"):
        variant("q8f61")
    short = SplitModel(floats.cpu, floats.decoders, (2,))
    with pytest.raises(KokoroNpuError, match="no evaluation utterance fits"):
        _compare(short, ["fp16"], tmp_path)


@pytest.mark.parametrize(
    ("build", "taken"), [("[120,400,1800]", [120, 400]), ("200", [200]), ("1800", [1800]), ("[512,1536]", [512])]
)
def test_the_variants_have_the_short_buckets_of_any_build(
    build: str, taken: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stage asks for, under the plan of a build of these buckets."""
    asked = []

    def compared(floats: SplitModel, *_: object) -> None:
        asked.append(floats.frames)
        raise KokoroNpuError("enough")

    (tmp_path / "params.yaml").write_text(compose(ROOT, [f"bucket.frames={build}"]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(variants, "compare", compared)
    monkeypatch.setattr(variants, "load_reference_set", lambda *_: iter(()))
    monkeypatch.setattr("sys.argv", ["variants"])
    with pytest.raises(SystemExit, match="error: enough"):
        variants.main()
    assert asked == [taken]
