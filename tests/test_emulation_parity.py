"""The whole decoder's parity in the emulation, with ONNX Runtime in the emulation's place."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kokoro import KModel

from kokoro_npu.audio import metrics
from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.emulation.htp import FP16, Answer, Job
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import emulated
from kokoro_npu.evaluate.gates import worst_figures
from kokoro_npu.evaluate.parity import evaluate
from kokoro_npu.files import write_onnx
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.sessions import cpu_session
from kokoro_npu.model import reference
from kokoro_npu.model.export import export_decoder
from tests.narrow_model import random_features

BUCKET, LENGTHS = Bucket(8), (5, 8, 11, 30)
TARGET, SETTINGS = Target("sm8650", "", 57, 75, 8), CompileSettings()


class FakeHtp:
    """Compiles by naming the model, and emulates by ONNX Runtime with every sample 1 % too large; dies at one call."""

    def __init__(self, dies_at: int = -1) -> None:
        self.calls, self.dies_at, self.compiled = 0, dies_at, []  # type: ignore[var-annotated]

    def compile(self, path: Path, *_: Any) -> dict[str, Any]:
        self.compiled.append(path)
        return {"compiled": True}

    def emulate(self, jobs: Sequence[Job], *_: Any, **__: Any) -> list[Answer]:
        (job,) = jobs
        self.calls += 1
        if self.calls == self.dies_at:
            return [Answer({}, "the emulation died of SIGKILL")]
        assert isinstance(job.model, Path)
        assert job.model.name.endswith("_ctx.onnx")
        model = next(path for path in self.compiled if f"{path.stem}_ctx" == job.model.stem)
        (audio,) = cpu_session(model).run(None, job.feeds)
        return [Answer({"audio": audio * np.float32(1.01)})]


@pytest.fixture(scope="module")
def recorded(narrow: KModel) -> list[ReferenceUtterance]:
    found = []
    for frames in LENGTHS:
        features = random_features(frames, frames)
        audio = reference.decode(narrow.decoder, features)
        voice = np.zeros((1, 256), np.float32)
        found.append(
            ReferenceUtterance(f"u{frames}", frames, 1.0, 0, features, audio, np.zeros((1, 3), np.int64), voice)
        )
    return found


@pytest.fixture(scope="module")
def decoders(narrow: KModel, tmp_path_factory: pytest.TempPathFactory) -> list[emulated.EmulatedDecoder]:
    directory = tmp_path_factory.mktemp("decoders")
    for name in ("float", "quantized"):
        model = export_decoder(narrow, BUCKET)
        model.producer_name = name  # answers are kept by the model's bytes
        write_onnx(directory / f"{name}.onnx", model)
    names = {FP16: "float", QUANTIZED: "quantized"}
    return [emulated.EmulatedDecoder(variant, directory / f"{name}.onnx", "fp16") for variant, name in names.items()]


def _run(
    fake: FakeHtp,
    decoders: list[emulated.EmulatedDecoder],
    utterances: list[ReferenceUtterance],
    cache: Path,
    patch: pytest.MonkeyPatch,
) -> dict[str, list[Any]]:
    patch.setattr(emulated, "compile_decoder", fake.compile)
    patch.setattr(emulated, "emulate", fake.emulate)
    return emulated.decode_all(decoders, utterances, BUCKET, TARGET, SETTINGS, cache, 1)


def test_the_shortest_utterances_and_the_middle_of_longer_ones(
    narrow: KModel, recorded: list[ReferenceUtterance]
) -> None:
    chosen = emulated.short_utterances(recorded[::-1], BUCKET, 3, narrow)
    assert [(item.id, item.frames) for item in chosen] == [("u5", 5), ("u8", 8), ("u11[cut]", 8)]
    for item in chosen:
        truth = reference.decode(narrow.decoder, item.features)
        assert metrics.snr_db(truth, item.reference) > 100
    with pytest.raises(KokoroNpuError, match="5 utterances are asked for and 4 were recorded"):
        emulated.short_utterances(recorded, BUCKET, 5, narrow)


def test_figures_are_those_of_the_emulated_audio(
    narrow: KModel,
    recorded: list[ReferenceUtterance],
    decoders: list[emulated.EmulatedDecoder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utterances = emulated.short_utterances(recorded, BUCKET, 3, narrow)
    audio = _run(FakeHtp(), decoders, utterances, tmp_path / "cache", monkeypatch)
    quantized = decoders[1].path
    table = evaluate(utterances, BUCKET, emulated.variants(audio, quantized), tmp_path / "wavs")
    report = worst_figures(table)
    # 1 % too large is 40 dB; the same decoder on ONNX Runtime is exact.
    assert report["fp16_snr_db_min"] == pytest.approx(40, abs=0.1)
    assert report["quantized_snr_db_min"] == pytest.approx(40, abs=0.1)
    assert report["quantized_cpu_snr_db_min"] > 80
    assert len(list((tmp_path / "wavs").iterdir())) == 3 * 4


def test_a_killed_run_goes_on_where_it_stopped(
    narrow: KModel,
    recorded: list[ReferenceUtterance],
    decoders: list[emulated.EmulatedDecoder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utterances = emulated.short_utterances(recorded, BUCKET, 2, narrow)
    fake = FakeHtp(dies_at=3)
    with pytest.raises(KokoroNpuError, match=r"^emulate quantized u5: the emulation died of SIGKILL$"):
        _run(fake, decoders, utterances, tmp_path, monkeypatch)
    again = FakeHtp()
    done = len(list(tmp_path.glob("*.npy")))
    audio = _run(again, decoders, utterances, tmp_path, monkeypatch)
    assert 2 <= done < 4
    assert again.calls == 4 - done
    assert [len(sounds) for sounds in audio.values()] == [2, 2]
    last = FakeHtp()
    _run(last, decoders, utterances, tmp_path, monkeypatch)
    assert (last.calls, last.compiled) == (0, [])
