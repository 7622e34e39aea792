"""Classes of ops, parts of graphs and the numerical audit, with ONNX Runtime in the emulation's place."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from kokoro import KModel

from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.compile import toolchain
from kokoro_npu.compile.options import CompileSettings, Target
from kokoro_npu.emulation import bisect, htp, numerics
from kokoro_npu.emulation.classes import op_classes
from kokoro_npu.emulation.graph import Graph, Tensor, values
from kokoro_npu.emulation.htp import FP16, Answer, Job, agreement_db, estimate_seconds
from kokoro_npu.emulation.numerics import Form, audit_numerics, check_gates, summarize
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.geometry import Bucket
from kokoro_npu.graphs.cost import Cost
from kokoro_npu.host.steps import pad_to_bucket
from kokoro_npu.model.export import export_decoder
from tests.narrow_model import random_features
from tests.small_graphs import INPUTS, WIDTH, decoder_like, quantize_w8a16

TARGET, SETTINGS = Target("sm8650", "", 57, 75, 8), CompileSettings()
GATES = {"fp16_snr_db_min": 40.0, "quantized_snr_db_min": 40.0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, onnx.ModelProto]:
    """The same small graph by form."""
    directory = tmp_path_factory.mktemp("models")
    path = decoder_like(directory / "float.onnx")
    return {FP16: onnx.load(path), QUANTIZED: onnx.load(quantize_w8a16(path, directory / "quantized.onnx"))}


@pytest.fixture
def feeds() -> dict[str, Tensor]:
    rng = np.random.default_rng(2)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in INPUTS.items()}


class FakeHtp:
    """ONNX Runtime as the emulation: right but for ops of one kind, which come out 10 % too large or not at all."""

    def __init__(self, wrong: str = "", dead: str = "") -> None:
        self.wrong, self.dead, self.jobs = wrong, dead, 0

    def __call__(self, jobs: Sequence[Job], target: Target, settings: CompileSettings) -> list[Answer]:
        assert (target, settings) == (TARGET, SETTINGS)
        return [self._answer(job) for job in jobs]

    def _answer(self, job: Job) -> Answer:
        self.jobs += 1
        assert isinstance(job.model, onnx.ModelProto)
        kinds = {node.op_type for node in job.model.graph.node}
        if self.dead in kinds:
            return Answer({}, "the emulation died of SIGSEGV")
        outputs = values(job.model, job.feeds)
        return Answer({k: v * np.float32(1.1) if self.wrong in kinds else v for k, v in outputs.items()})


def _audit(
    models: Mapping[str, onnx.ModelProto],
    feeds: Mapping[str, Tensor],
    cache: Path,
    fake: FakeHtp,
    monkeypatch: pytest.MonkeyPatch,
    made_from: str = "weights",
    max_seconds: float = 1e9,
) -> pd.DataFrame:
    monkeypatch.setattr(numerics, "emulate", fake)
    forms = [Form(name, model, made_from) for name, model in models.items()]
    return audit_numerics(forms, WIDTH, feeds, TARGET, SETTINGS, cache, max_seconds, 1)


def test_parts_compute_what_the_whole_computes(models: dict[str, onnx.ModelProto], feeds: dict[str, Tensor]) -> None:
    for model in models.values():
        whole = values(model, feeds)["audio"]
        graph = Graph(model)
        for name in ("m1", "in1", "sk"):
            middle = graph.quantized(name)
            head = values(graph.part(list(INPUTS), [name]), feeds)
            others = {"mask": feeds["mask"], "ratio": feeds["ratio"], "style": feeds["style"], "x": feeds["x"]}
            tail = graph.part([name, *others], ["audio"])
            fed = {info.name: (others | head)[info.name] for info in tail.graph.input}
            assert name in fed
            np.testing.assert_array_equal(values(tail, fed)["audio"], whole)
            assert len(middle) == 1


def test_every_op_is_in_one_class_with_its_quantization(models: dict[str, onnx.ModelProto]) -> None:
    for name, model in models.items():
        graph = Graph(model)
        classes = op_classes(graph, WIDTH)
        assert sorted(node for one in classes for node in one.nodes) == sorted(node.name for node in graph.operators)
        (conv,) = [one for one in classes if "conv1" in one.nodes]
        part = conv.model(graph)
        assert [info.name for info in part.graph.input] == ["x"]
        kinds = [node.op_type for node in part.graph.node]
        expected = ["DequantizeLinear"] * 4 + ["QuantizeLinear"] * 2 if name == QUANTIZED else []
        assert sorted(kinds) == sorted(["Conv", *expected])
        assert ("uint16" in conv.label) == (name == QUANTIZED)


def test_classes_are_the_same_in_every_bucket(narrow: KModel) -> None:
    keys = []
    for frames in (41, 53):  # neither is a number of channels
        model = export_decoder(narrow, Bucket(frames))
        keys.append([one.key for one in op_classes(Graph(model), frames)])
    # The ratios' slices among them, and no width as a number of its own.
    assert len(keys[0]) > 50
    assert set(keys[0]) == set(keys[1])


def test_the_audit_runs_on_tensors_of_the_decoder(
    narrow: KModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(16)
    model = export_decoder(narrow, bucket)
    feeds = pad_to_bucket(random_features(11, 3), bucket)
    seen: dict[str, Tensor] = {}

    def spy(jobs: Sequence[Job], *_: object) -> list[Answer]:
        for job in jobs:
            seen.update(job.feeds)
        return [Answer(values(job.model, job.feeds)) for job in jobs if isinstance(job.model, onnx.ModelProto)]

    monkeypatch.setattr(numerics, "emulate", spy)
    table = audit_numerics([Form(FP16, model, "w")], 16, feeds, TARGET, SETTINGS, tmp_path, 1e9, 1)
    assert table["snr_db"].min() == 200
    truth = values(model, feeds, list(seen))
    for name, value in seen.items():
        np.testing.assert_array_equal(value, truth[name])
    assert table["nodes"].sum() == len(list(Graph(model).operators))


@pytest.mark.parametrize(("op", "node"), [("InstanceNormalization", "norm"), ("ConvTranspose", "up"), ("Exp", "exp1")])
def test_a_wrong_op_is_named(
    models: dict[str, onnx.ModelProto],
    feeds: dict[str, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    node: str,
) -> None:
    table = _audit(models, feeds, tmp_path, FakeHtp(wrong=op), monkeypatch)
    with pytest.raises(KokoroNpuError, match=rf"^here: HTP computes {node} \({op}, fp16\) to 20\.0 dB") as caught:
        check_gates(table, GATES, "here")
    assert "\n" not in str(caught.value)
    report = summarize(table)
    assert report["fp16_op_worst"] == f"{node} ({op})"
    assert report["fp16_op_snr_db_min"] == pytest.approx(20, abs=0.1)
    assert report["quantized_op_worst"] == f"{node} ({op})"
    check_gates(_audit(models, feeds, tmp_path / "right", FakeHtp(), monkeypatch), GATES, "here")


def test_an_op_that_kills_the_emulation_is_named(
    models: dict[str, onnx.ModelProto], feeds: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _audit(models, feeds, tmp_path, FakeHtp(dead="Cos"), monkeypatch)
    with pytest.raises(KokoroNpuError, match=r"cos1 \(Cos, fp16\) does not run in the HTP emulation: .* SIGSEGV"):
        check_gates(table, GATES, "here")


def test_a_class_is_measured_once(
    models: dict[str, onnx.ModelProto], feeds: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeHtp()
    first = _audit(models, feeds, tmp_path, fake, monkeypatch)
    assert fake.jobs == len(first)
    again = FakeHtp()
    pd.testing.assert_frame_equal(first, _audit(models, feeds, tmp_path, again, monkeypatch))
    assert again.jobs == 0
    # Other weights, another level: other figures.
    _audit(models, feeds, tmp_path, again, monkeypatch, made_from="other weights")
    assert again.jobs == len(first)


def test_what_the_time_does_not_allow_is_said_to_be_left_out(
    models: dict[str, onnx.ModelProto], feeds: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _audit(models, feeds, tmp_path, FakeHtp(), monkeypatch, max_seconds=5.5)
    report = summarize(table)
    assert report["fp16_classes_not_measured"] > 0
    assert report["fp16_classes"] - report["fp16_classes_not_measured"] == 5
    assert table.loc[table["snr_db"].isna(), "error"].str.startswith("not measured").all()


def test_one_estimate_for_single_ops_and_whole_decoders() -> None:
    """About a second for a small op, and what a decoder of 64 frames took: minutes, the quantized one more."""
    assert estimate_seconds(Cost(0.01, 0, 10**5), FP16) == pytest.approx(1, abs=0.1)
    floats, quantized = Cost(41.5, 0, 1_492_000_000), Cost(41.5, 0, 749_000_000)
    assert 180 < estimate_seconds(floats, FP16) < 240
    assert 300 < estimate_seconds(quantized, QUANTIZED) < 600


def test_agreement_is_that_of_the_worst_output() -> None:
    truth = {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}
    assert agreement_db(truth, truth) == 200
    assert agreement_db(truth, truth | {"b": np.full(4, 0.9, np.float32)}) == pytest.approx(20, abs=0.01)
    assert agreement_db(truth, truth | {"b": np.full(4, np.nan, np.float32)}) == -200
    assert agreement_db(truth, truth | {"b": np.ones(3, np.float32)}) == -200
    zeros = {"a": np.zeros(4, np.float32)}
    assert agreement_db(zeros, {"a": np.full(4, 1e-3, np.float32)}) == -200


@pytest.mark.parametrize("form", [FP16, QUANTIZED])
def test_bisecting_names_the_first_op_that_departs(
    models: dict[str, onnx.ModelProto], feeds: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(bisect, "emulate", FakeHtp(wrong="LeakyRelu"))
    found = list(bisect.compare(models[form], feeds, TARGET, SETTINGS, ""))
    first = next(cut for cut in found if cut.departs(40))
    assert (first.node, first.op, first.tensor) == ("leaky", "LeakyRelu", "lr")
    before = [cut.snr_db for cut in found[: found.index(first)]]
    assert before == [200.0] * len(before)
    assert len(before) > 10
    assert all(cut.departs(40) for cut in found if cut.node in ("up", "sin1", "flatten"))


def test_a_scope_starts_from_onnx_runtimes_values(
    models: dict[str, onnx.ModelProto], feeds: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisect, "emulate", FakeHtp(wrong="LeakyRelu"))
    found = list(bisect.compare(models[FP16], feeds, TARGET, SETTINGS, scope="mask"))
    assert [cut.node for cut in found] == ["mask1", "mask2", "mask3", "mask4", "mask5", "mask6"]
    assert not any(cut.departs(100) for cut in found)
    with pytest.raises(KokoroNpuError, match="'nosuch' is the prefix of no op"):
        list(bisect.compare(models[FP16], feeds, TARGET, SETTINGS, scope="nosuch"))


def test_a_crash_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker dies at its second job each time it starts: the first is kept, the second told, the rest go on."""
    runs: list[int] = []

    def worker(_command: str, request: dict, **_options: object) -> toolchain.WorkerRun:
        jobs = request["jobs"]
        runs.append(len(jobs))
        with open(jobs[0]["outputs"], "wb") as stream:
            np.savez(stream, y=np.ones(1))
        dies = len(jobs) > 1
        return toolchain.WorkerRun({} if dies else {"ok": True}, -11 if dies else 0, "", 1.0, 1)

    monkeypatch.setattr(toolchain, "run_worker", worker)
    answers = htp.emulate([Job(Path(f"{n}.onnx"), {}) for n in range(5)], TARGET, SETTINGS)
    assert [answer.error for answer in answers] == ["", "the process died of SIGSEGV"] * 2 + [""]
    assert runs == [5, 3, 1]
