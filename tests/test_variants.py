"""Whole-model variants on a narrow model: what is written, what is held fixed, and what the figures say."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kokoro import KModel

from kokoro_npu.corpus.recording import record
from kokoro_npu.corpus.reference_set import ReferenceUtterance, load_reference_set
from kokoro_npu.corpus.utterances import CALIBRATION, EVALUATION, Utterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.reading import read_model
from kokoro_npu.host.frontend import Frontend
from kokoro_npu.model.export import export_decoder, export_duration, export_prosody
from kokoro_npu.variants import whole_model
from kokoro_npu.variants.comparison import OTHER_DRAW, Comparison, Settings, compare
from kokoro_npu.variants.conversion import DURATION, PROSODY, Source, variant, variant_bytes
from kokoro_npu.variants.verification import verify
from kokoro_npu.variants.whole_model import GIVEN, OWN, Files
from tests.tiny_model import tiny_voice

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
def source(narrow: KModel, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """The float models of a build."""
    root = tmp_path_factory.mktemp("build")
    built = Source(root / "cpu", root / "decoder", root / "decoder")
    write_onnx(built.cpu / f"{DURATION}.onnx", export_duration(narrow))
    write_onnx(built.cpu / f"{PROSODY}.onnx", export_prosody(narrow))
    for frames in FRAMES:
        write_onnx(built.decoder / f"kokoro_decoder_{frames}.onnx", export_decoder(narrow, Bucket(frames)))
    frontend = Frontend(built.cpu / f"{DURATION}.onnx", built.cpu / f"{PROSODY}.onnx")
    voices = {"v": 3 * tiny_voice(0)[:, 0]}
    record(CORPUS, narrow, voices, frontend, root / "features", SEED)
    return built


def _recorded(source: Source, part: str) -> list[ReferenceUtterance]:
    return list(load_reference_set(source.cpu.parent / "features", part))


@pytest.fixture(scope="module")
def compared(source: Source, tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    out = tmp_path_factory.mktemp("variants")
    settings = Settings(NAMES, FRAMES, runs=2, seed=SEED)
    parts = (_recorded(source, CALIBRATION), _recorded(source, EVALUATION))
    return compare(source, Path("there/is/no.onnx"), *parts, settings, out), out


def _row(table: pd.DataFrame, model: str) -> pd.Series:
    return table[table["model"] == model].iloc[0]


def test_every_variant_has_its_figures(compared: tuple[Comparison, Path]) -> None:
    found, _ = compared
    assert list(found.table["model"]) == ["fp32", *NAMES, OTHER_DRAW]
    utterances = found.utterances.groupby("model").size()
    assert (utterances.drop(OTHER_DRAW) == 2 * 2).all()  # two utterances, two sources
    assert utterances[OTHER_DRAW] == 2
    assert not found.table[found.table["model"].isin(NAMES)].isna().any().any()
    assert _row(found.table, OTHER_DRAW)["own_logmel_mae_mean"] > 10 * _row(found.table, "fp32")["own_logmel_mae_mean"]
    for name in NAMES:
        assert found.summary[f"{name}_bytes"] == _row(found.table, name)["bytes"]
    assert "best_variant" not in found.summary  # there was no monolith to be better than


def test_the_float_model_is_the_reference(compared: tuple[Comparison, Path]) -> None:
    found, _ = compared
    snr = {name: _row(found.table, name)["given_snr_db_min"] for name in ("fp32", *NAMES)}
    assert snr["fp32"] > 90
    # The random model amplifies what the trained one does not.
    assert 0 < snr["q8f16"] < 40
    assert _row(found.table, "fp32")["tokens_moved"] == 0


def test_sizes_are_those_of_the_files(source: Source, compared: tuple[Comparison, Path]) -> None:
    found, out = compared
    for name in NAMES:
        directory = out / name
        expected = sum(path.stat().st_size for path in directory.iterdir() if path.suffix != ".json")
        assert _row(found.table, name)["bytes_all_buckets"] == expected
        other = directory / f"kokoro_decoder_{max(FRAMES)}.onnx"
        assert variant_bytes(directory, [min(FRAMES)]) == expected - other.stat().st_size
    float_bytes = sum((source.cpu / f"{part}.onnx").stat().st_size for part in (DURATION, PROSODY))
    assert _row(found.table, "q8f16")["bytes_cpu_models"] < 0.27 * float_bytes


def test_one_weight_file_serves_all_buckets(compared: tuple[Comparison, Path]) -> None:
    _, out = compared
    sizes = [(out / "q8f16" / f"kokoro_decoder_{frames}.onnx").stat().st_size for frames in FRAMES]
    weights = (out / "q8f16" / "kokoro_decoder.weights").stat().st_size
    float_weights = sum(
        tensor.ByteSize() for tensor in read_model(out / "q8f16" / f"kokoro_decoder_{FRAMES[0]}.onnx").graph.initializer
    )
    assert abs(sizes[0] - sizes[1]) < 5000
    assert weights > 0.8 * (float_weights - sizes[0])


def test_given_durations_and_source_hold_what_they_say(source: Source) -> None:
    """A model whose durations are all wrong keeps the reference's time; given its source, the float model is exact."""
    items = _recorded(source, EVALUATION)
    files = Files.in_directory(source.cpu, source.decoder, FRAMES)
    truth = whole_model.float_durations(files.duration, items)
    spoken = {(each.item.id, each.source): each for each in whole_model.speak_split("m", files, items, truth, SEED)}
    for item in items:
        for kind in (GIVEN, OWN):
            audio = spoken[item.id, kind].audio
            assert len(audio) == 600 * item.frames
            assert whole_model.measured(item.reference, audio)["snr_db"] > 80
    longer = {name: durations + 1 for name, durations in truth.items()}
    moved = whole_model.moved_durations(truth, longer)
    tokens = sum(durations.size for durations in truth.values())
    assert moved == {
        "tokens": tokens, "tokens_moved": tokens, "frames_moved": tokens, "frames_moved_max": 1, "utterances_moved": 2,
    }  # fmt: skip


def test_verify_speaks_with_a_decoder_of_any_kind(
    source: Source, compared: tuple[Comparison, Path], narrow: KModel
) -> None:
    item = _recorded(source, EVALUATION)[0]
    frontend = Frontend(source.cpu / f"{DURATION}.onnx", source.cpu / f"{PROSODY}.onnx")
    arguments = (item.tokens, item.voice, item.speed, SEED, frontend, narrow)
    found = {
        kind: verify(directory / f"kokoro_decoder_{max(FRAMES)}.onnx", *arguments)
        for kind, directory in (("float", source.decoder), ("int8", compared[1] / "q8f16"))
    }
    for each in found.values():
        assert (each.kind, each.frames, each.moved_tokens) == ("decoder", item.frames, 0)
        assert len(each.audio) == len(each.reference) == 600 * item.frames
    snr = {kind: each.figures()["snr_db"] for kind, each in found.items()}
    assert snr["float"] > 80 > 40 > snr["int8"]
    assert found["float"].figures()["logmel_mae_db"] < 0.01 < found["int8"].figures()["logmel_mae_db"]
    with pytest.raises(KokoroNpuError, match=r"kokoro_duration\.onnx: its inputs are tokens, token_length"):
        verify(source.cpu / f"{DURATION}.onnx", *arguments)


def test_a_recording_of_another_build_is_refused(source: Source) -> None:
    items = _recorded(source, EVALUATION)
    files = Files.in_directory(source.cpu, source.decoder, FRAMES)
    stranger = ReferenceUtterance(**{**vars(items[0]), "frames": items[0].frames + 1})
    with pytest.raises(KokoroNpuError, match=r"run the stage `reference-set` again"):
        whole_model.float_durations(files.duration, [stranger])


def test_a_short_recording_counts_as_silence_where_it_is_missing() -> None:
    reference = np.ones(6000, np.float32)
    assert whole_model.measured(reference, reference[:3000])["snr_db"] == pytest.approx(10 * np.log10(2), abs=1e-6)


def test_unknown_variants_and_empty_comparisons(source: Source, tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match="variant 'q8f61' does not exist; there are q8f16"):
        variant("q8f61")
    settings = Settings(["fp16"], FRAMES, runs=2, seed=SEED)
    with pytest.raises(KokoroNpuError, match="no evaluation utterance fits"):
        compare(source, Path("no"), [], [], settings, tmp_path)
    with pytest.raises(KokoroNpuError, match=r"kokoro_decoder_2\.onnx does not exist"):
        compare(source, Path("no"), [], [], Settings(["fp16"], (2,), runs=2, seed=SEED), tmp_path)
