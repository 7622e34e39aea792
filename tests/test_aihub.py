"""AI Hub through the real client against a loopback server: what goes right, and each known trap."""

import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
import yaml
from omegaconf.errors import OmegaConfBaseException
from qai_hub.util import session

from hydra_plugins import plan
from kokoro_npu.aihub.credentials import INI_VARIABLE, read_credentials
from kokoro_npu.aihub.journal import Journal
from kokoro_npu.aihub.redaction import Redactor, redacted_logging
from kokoro_npu.aihub.service import connect
from kokoro_npu.aihub.settings import ServiceSettings, compile_options, inference_options
from kokoro_npu.compile import aihub, binary, toolchain
from kokoro_npu.compile.backends import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import cpu_profile, parity
from kokoro_npu.files import sha256
from tests import aihub_case as case
from tests.aihub_case import FRAMES, S23, S24, SM8650, TAB, Place, several
from tests.aihub_server import OLDER, PHONE, S3_SECRET, S3_SESSION, TOKEN, FakeHub, Fault, serve
from tools.plan import compose

ROOT = Path(__file__).resolve().parents[1]


pytestmark = pytest.mark.usefixtures("no_token_leaves")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve(case.hub()) as running:
        monkeypatch.setenv(INI_VARIABLE, str(case.write_ini(tmp_path / "client.ini", running.url)))
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def failure(run: Callable[[], Any]) -> str:
    """The one line that a run ends in; nothing in the exception or what it came from holds the token."""
    with pytest.raises(KokoroNpuError) as caught:
        run()
    seen: BaseException | None = caught.value
    while seen is not None:
        assert TOKEN not in f"{seen!r} {seen} {seen.args}"
        seen = seen.__cause__ or seen.__context__
    assert TOKEN not in "".join(traceback.format_exception(caught.value))
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 900
    return line


# --- A: what comes out ---


@pytest.mark.usefixtures("hub")
def test_compile_and_measure_on_a_device(place: Place) -> None:
    report = place.compile()
    blob = place.compiled / f"kokoro_decoder_{FRAMES}_ctx_qnn.bin"
    assert sorted(p.name for p in place.compiled.iterdir()) == ["devices.csv", blob.name]
    assert (report["backend"], report["device"], report["compiled"]) == ("aihub", S24, True)
    assert (report["binary_bytes"], report["qairt"]) == (blob.stat().st_size, "v2.45")

    measured = place.profile()
    assert (measured["quantized_latency_ms_p50"], measured["quantized_runs"]) == (2.15, 4)
    assert measured["quantized_rtf_p50"] == round(0.00215 * 40 / FRAMES, 4)
    assert (measured["device_memory_low_bytes"], measured["device_memory_high_bytes"]) == (40_000_000, 50_000_000)
    assert [measured[f"device_ops_{unit}"] for unit in ("npu", "gpu", "cpu")] == [2, 0, 1]
    assert measured["device_utterances"] == 2
    folder = place.profiled / "samsung-galaxy-s24"
    assert pd.read_csv(folder / "layers.csv")["name"].tolist() == ["conv1", "norm1", "cast"]

    # The parity is that of the audio the device returned, by the functions and columns of parity-eval.
    chosen = sorted(case.utterances(), key=lambda item: -item.frames)[:2]
    spoken = iter([case.speak({"energy": [i["energy"]]})["audio"][0] for i in _padded(chosen)])
    table = parity.evaluate(chosen, case.BUCKET, iter([("quantized", lambda _: next(spoken))]))
    found = pd.read_csv(folder / "parity.csv")
    assert found.columns.tolist() == table.columns.tolist()
    assert np.allclose(found["snr_db"], table["snr_db"], rtol=1e-4)
    assert measured["device_quantized_snr_db_min"] == pytest.approx(table["snr_db"].min(), rel=1e-5)


def _padded(chosen: list[Any]) -> list[dict[str, np.ndarray]]:
    from kokoro_npu.host.steps import pad_to_bucket

    return [pad_to_bucket(item.features, case.BUCKET) for item in chosen]


@pytest.mark.usefixtures("hub")
def test_the_reports_have_the_keys_of_the_local_ones(place: Place, tmp_path: Path) -> None:
    remote, measured = place.compile(), place.profile()
    settings = CompileSettings(memory_reserve_gib=1e6)  # refused for want of memory: the report is whole all the same
    here = compile_decoder(place.model, FRAMES, Spec("w8a16", SM8650, settings), tmp_path / "local")
    assert not here["compiled"]
    assert set(remote) == set(here) | {"device"}
    assert remote["backend"] != here["backend"] == toolchain.BACKEND

    def instantly(*_: Any) -> dict[str, Any]:
        return cpu_profile.timed(lambda: None, 1, timing, 0.0, "nothing")

    timing = cpu_profile.Timing(warmup=0, runs=2, seconds=0, threads=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_profile, "in_own_process", instantly)  # no models here to measure
        spoken = cpu_profile.Phrase(np.zeros((1, 3), np.int64), np.zeros((1, 256), np.float32), 1.0, FRAMES)
        decoders = {"": place.model, "quantized_": place.model}
        cpu = cpu_profile.profile_bucket(spoken, case.BUCKET, tmp_path, tmp_path, decoders, tmp_path, timing)
    assert {key for key in measured if not key.startswith("device")} == set(cpu)


def test_the_weights_go_up_inside_the_model(hub: FakeHub, place: Place, tmp_path: Path) -> None:
    place.compile()
    (sent,) = [m.data for m in hub.models.values() if m.name.startswith("kokoro-npu kokoro_decoder")]
    model = onnx.load_from_string(sent)
    onnx.checker.check_model(model)
    assert (
        len(hub.models["m000001"].data) == len(sent) > (place.root / "quantized/kokoro_decoder.weights").stat().st_size
    )
    again = aihub.merged(place.model, tmp_path / "elsewhere" / "m.onnx")
    assert again.read_bytes() == sent


def test_a_large_model_goes_up_in_parts(hub: FakeHub, place: Place) -> None:
    hub.part_size = 500
    assert place.compile()["compiled"]
    assert sum(request[0] == "PUT" for request in hub.requests) > 2


def test_transfers_with_credentials_of_the_storage(
    hub: FakeHub, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client offers the service to hand out S3 credentials instead of addresses; boto's logs hold them."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", hub.url)
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    hub.s3 = True
    assert place.compile()["compiled"]
    assert place.profile()["device_quantized_snr_db_min"] > 40
    assert ("HEAD", "storage/m000003") in hub.requests
    assert "x-amz-" in caplog.text.lower()
    assert S3_SESSION not in caplog.text
    assert S3_SECRET not in caplog.text


def test_options_reach_the_service(hub: FakeHub, place: Place) -> None:
    place.compile(
        qairt_version="2.45",
        compile_options="--qnn_options default_graph_htp_vtcm_size=4;context_priority=HIGH --truncate_64bit_io",
    )
    place.profile(inference_options="--max_profiler_iterations 50", qairt_version="2.45")
    compiled, measured = (getattr(job.pb, str(job.pb.WhichOneof("job"))) for job in hub.jobs.values())
    assert compiled.options == (
        "--target_runtime qnn_context_binary --qnn_options default_graph_htp_optimizations=O=2;"
        "default_graph_htp_precision=FLOAT16;default_graph_htp_vtcm_size=4;context_priority=HIGH "
        "--qairt_version 2.45 --truncate_64bit_io"
    )
    assert measured.options == "--qairt_version 2.45 --max_profiler_iterations 50"
    assert measured.is_profiling_on


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compile_options": "--target_runtime tflite"}, "set aihub.target_runtime"),
        ({"compile_options": "--qairt_version=2.1"}, "set aihub.qairt_version"),
        ({"inference_options": "--qairt_version 2.1"}, "set aihub.qairt_version"),
        ({"compile_options": "--qnn_options O=3;x"}, "'x' is no key=value"),
        ({"compile_options": "'"}, "cannot be read"),
    ],
)
def test_bad_options_are_one_line(settings: dict[str, Any], message: str) -> None:
    def options() -> None:
        parsed = ServiceSettings(**settings)
        compile_options(parsed, 2, 8)
        inference_options(parsed)

    assert message in failure(options)


def test_options_of_the_local_compiler_are_refused(hub: FakeHub, place: Place) -> None:
    settings = CompileSettings("aihub", options={"vtcm_mb": 4}, aihub=place.settings)
    line = failure(lambda: compile_decoder(place.model, FRAMES, Spec("w8a16", SM8650, settings), place.compiled))
    assert "set aihub.compile_options" in line
    assert hub.requests == []


def test_an_archive_gives_its_one_binary(hub: FakeHub, place: Place) -> None:
    import io
    import zipfile

    def archive(model: bytes, options: str, device: str) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("model.onnx/model.onnx", b"onnx")
            file.writestr("model.onnx/../../qnn.bin", case.make_binary(model, options, device))
        return buffer.getvalue()

    hub.compiler, hub.download_name = archive, "job.onnx.zip"
    assert place.compile(target_runtime="precompiled_qnn_onnx")["compiled"]
    assert sorted(p.name for p in place.root.iterdir()) == ["aihub", "client.ini", "compiled", "quantized"]


@pytest.mark.parametrize(("wrong", "message"), [({"device": S23}, "is for soc_model 43"), ({"level": 1}, "at level 1")])
def test_another_binary_than_asked_for_is_caught(
    hub: FakeHub, place: Place, wrong: dict[str, Any], message: str
) -> None:
    def other(model: bytes, options: str, device: str) -> bytes:
        options = options.replace("=O=2", f"=O={wrong.get('level', 2)}")
        return case.make_binary(model, options, wrong.get("device", device))

    hub.compiler = other
    assert message in failure(place.compile)
    assert list(place.compiled.iterdir()) == []


# --- B: nothing lost, nothing twice ---


def test_a_second_run_submits_and_uploads_nothing(hub: FakeHub, place: Place) -> None:
    first = [place.compile(), place.profile()]
    digest = sha256(place.compiled / f"kokoro_decoder_{FRAMES}_ctx_qnn.bin")
    before = {path: hub.posts(path) for path in ("models", "datasets", "jobs")}
    assert before == {"models": 1, "datasets": 1, "jobs": 2}  # the binary is the compile job's, not uploaded again
    second = [place.compile(), place.profile()]
    assert {path: hub.posts(path) for path in before} == before
    assert second == first
    assert sha256(place.compiled / f"kokoro_decoder_{FRAMES}_ctx_qnn.bin") == digest


def test_a_fresh_clone_adopts_the_jobs_by_name(hub: FakeHub, place: Place, tmp_path: Path) -> None:
    place.compile()
    place.profile()
    other = Place(tmp_path / "clone")
    other.compile()
    other.profile()
    assert hub.posts("jobs") == 2
    assert len(set(hub.names())) == 2


@pytest.mark.parametrize("kind", ["lose", "garbage", "empty", "html", "cut"])
@pytest.mark.parametrize("hidden", [0, 2])
def test_a_lost_reply_of_a_submission_makes_no_second_job(hub: FakeHub, place: Place, kind: str, hidden: int) -> None:
    """The client alone posts again; here the job is looked for first, even if it is listed late."""
    hub.hide_new_jobs_for = hidden
    hub.fault = lambda _, method, path: Fault(kind) if (method, path) == ("POST", "jobs") else None
    place.compile(settle_seconds=2.0)
    assert hub.posts("jobs") == 1
    place.profile(settle_seconds=2.0)
    assert hub.posts("jobs") == 2


def test_a_request_that_never_arrived_is_sent_again(hub: FakeHub, place: Place) -> None:
    hub.fault = lambda _, __, path: Fault("drop") if path == "jobs" and hub.posts("jobs") == 1 else None
    assert place.compile()["compiled"]
    assert hub.posts("jobs") == 2
    assert len(hub.jobs) == 1


def test_an_abandoned_call_submits_nothing_later(hub: FakeHub, place: Place) -> None:
    """A submission that hangs before its POST is given up; when it wakes up it has no token and no address."""
    looks = 0

    def hang_once(_: int, __: str, path: str) -> Fault | None:
        nonlocal looks
        looks += path == "devices"
        return Fault("slow", seconds=0.8) if path == "devices" and looks == 2 else None

    hub.fault = hang_once
    place.compile(call_seconds=0.3)
    import time

    time.sleep(1.0)
    assert len(hub.jobs) == 1


def test_a_failed_job_is_told_and_not_submitted_again_unless_asked(hub: FakeHub, place: Place) -> None:
    hub.compiler = lambda *_: f"no luck with {TOKEN}."
    for _ in range(2):
        line = failure(place.compile)
        assert "AI Hub failed the job: no luck with [token]" in line
        assert f"{hub.url}/jobs/j000002/" in line
        assert "aihub.retry_failed=true" in line
    assert len(hub.jobs) == 1
    # Without a journal, too: the failed job is found by its name.
    for path in (place.root / "aihub").iterdir():
        path.unlink()
    assert "no luck" in failure(place.compile)
    assert len(hub.jobs) == 1
    hub.compiler = case.make_binary
    assert place.compile(retry_failed=True)["compiled"]
    assert len(hub.jobs) == 2
    assert place.compile()["compiled"]
    assert len(hub.jobs) == 2


def test_a_fresh_clone_that_is_told_to_try_again(hub: FakeHub, place: Place, tmp_path: Path) -> None:
    hub.compiler = lambda *_: "no luck"
    failure(place.compile)
    other = Place(tmp_path / "clone")
    assert "no luck" in failure(lambda: other.compile(retry_failed=True))
    assert len(hub.jobs) == 2
    hub.compiler = case.make_binary
    assert other.compile(retry_failed=True)["compiled"]
    assert len(hub.jobs) == 3


def test_a_service_that_goes_away_is_not_waited_for_once_a_device(hub: FakeHub, place: Place) -> None:
    hub.polls = 10**9
    hub.fault = lambda *_: Fault("status", 503) if hub.posts("jobs") == 3 and len(hub.requests) > 40 else None
    line = failure(lambda: place.compile(several(S24, S23, TAB), patience_seconds=0.5, connect_seconds=0.1))
    assert line.count("gave up after 0.5 s") == 1
    assert line.count("gave up after 0.1 s") == 2
    hub.polls, hub.fault = 1, lambda *_: None
    assert place.compile(several(S24, S23, TAB))["compiled"]
    assert len(hub.jobs) == 3


def test_429_is_waited_out_by_our_own_rule(hub: FakeHub, place: Place) -> None:
    """The client's own rule ends after seven tries."""
    limited = {"devices", "job_summaries", "models", "jobs"}

    def first_nine(_: int, method: str, path: str) -> Fault | None:
        early = path in limited and hub.requests.count((method, path)) <= 9
        return Fault("status", 429) if early else None

    hub.fault = first_nine
    assert place.compile(patience_seconds=60.0, connect_seconds=60.0, backoff_seconds=0.001)["compiled"]
    assert all(sum(path == p for _, p in hub.requests) >= 10 for path in limited)
    assert len(hub.jobs) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_service_that_stays_down_ends_in_one_line(hub: FakeHub, place: Place, status: int) -> None:
    hub.fault = lambda *_: Fault("status", status)
    line = failure(lambda: place.compile(connect_seconds=0.1))
    assert "list of devices: gave up after 0.1 s of failures" in line
    hub.fault = lambda _, method, __: Fault("status", status) if method == "POST" else None
    assert "gave up after 0.2 s" in failure(lambda: place.compile(patience_seconds=0.2))
    hub.fault = lambda *_: None
    assert place.compile()["compiled"]
    assert len(hub.jobs) == 1


def test_a_dead_service_ends_in_one_line(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(case.hub()) as gone:
        pass
    monkeypatch.setenv(INI_VARIABLE, str(case.write_ini(tmp_path / "client.ini", gone.url)))
    line = failure(lambda: place.compile(connect_seconds=0.2))
    assert "gave up after 0.2 s of failures, the last: " in line
    assert "Could not connect" in line


def test_a_service_that_never_answers_ends_in_one_line(hub: FakeHub, place: Place) -> None:
    hub.fault = lambda *_: Fault("hang", seconds=3)
    assert "no answer within 0.1 s" in failure(lambda: place.compile(call_seconds=0.1, connect_seconds=0.3))


@pytest.mark.usefixtures("hub")
def test_the_clients_retries_are_restored(place: Place) -> None:
    before = session.MAX_RETRIES
    with connect(ServiceSettings(**place.settings)):
        assert session.MAX_RETRIES == 0
    assert session.MAX_RETRIES == before > 0


def test_a_job_that_takes_too_long_is_kept(hub: FakeHub, place: Place) -> None:
    hub.polls = 10**9
    line = failure(lambda: place.compile(job_seconds=0.05))
    assert "still OPTIMIZING_MODEL after" in line
    assert "run again to go on waiting" in line
    hub.polls = 1
    assert place.compile()["compiled"]
    assert len(hub.jobs) == 1


def test_waiting_shows_state_and_time(hub: FakeHub, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    hub.polls = 4
    place.compile()
    err = capfd.readouterr().err
    assert f"AI Hub: 0 s: compile {FRAMES} frames on {S24}: OPTIMIZING_MODEL\n" in err
    assert f"AI Hub: 0 s: compile {FRAMES} frames on {S24}: SUCCESS\n" in err


def test_a_job_that_the_service_does_not_know(hub: FakeHub, place: Place) -> None:
    place.compile()
    hub.jobs.clear()
    line = failure(place.compile)
    assert "job j000002 stands in" in line
    assert "delete it to submit anew" in line
    for path in (place.root / "aihub").glob("compile-*.json"):
        path.unlink()
    assert place.compile()["compiled"]


def test_expired_uploads_are_made_again(hub: FakeHub, place: Place) -> None:
    place.compile()
    place.profile()
    for dataset in hub.datasets.values():
        dataset.age_days = 31
    hub.jobs.clear()
    hub.models.clear()
    for path in (place.root / "aihub").glob("[ci]*-*.json"):  # jobs of compile and inference; uploads stay
        path.unlink()
    for path in (place.root / "aihub").glob("outputs-*"):
        path.unlink()
    place.compile()
    place.profile()
    assert hub.posts("models") == 2
    assert hub.posts("datasets") == 2


def test_damaged_downloads_are_fetched_again_and_never_kept(hub: FakeHub, place: Place) -> None:
    cut = 0

    def twice(_: int, method: str, path: str) -> Fault | None:
        nonlocal cut
        cut += method == "GET" and path.startswith("storage/")
        return Fault("garbage") if path.startswith("storage/") and method == "GET" and cut < 3 else None

    hub.fault = twice
    assert place.compile()["compiled"]
    assert cut == 3
    cut = -10
    line = failure(place.compile)
    assert "damaged 3 times" in line
    assert list(place.compiled.rglob("*")) == []


def test_outputs_that_are_not_the_decoders_are_refused(hub: FakeHub, place: Place) -> None:
    place.compile()
    hub.device = lambda *_: {"audio": [np.zeros((1, 10), np.float32)] * 2}
    assert "instead of 2 times 2400 samples" in failure(place.profile)


@pytest.mark.usefixtures("hub")
def test_a_held_lock_is_one_line(place: Place) -> None:
    place.compile()
    (entry,) = (place.root / "aihub").glob("compile-*.json")
    with Journal(str(place.root / "aihub"), Redactor(TOKEN)).locked(entry.stem):
        assert "is held by another run of the same job" in failure(place.compile)
    assert place.compile()["compiled"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_journal_is_one_line_and_loses_no_job(hub: FakeHub, place: Place, content: bytes) -> None:
    place.compile()
    (entry,) = (place.root / "aihub").glob("compile-*.json")
    entry.write_bytes(content)
    assert "is no journal entry; delete it" in failure(place.compile)
    entry.unlink()
    assert place.compile()["compiled"]
    assert len(hub.jobs) == 1


# --- what is known before an upload ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist: AI Hub needs a token"),
        ("", r"has no section [api]"),
        (f"api_token = {TOKEN}\n", "is no valid ini file (line 1)"),
        (f"[api]\n{TOKEN}\n", "is no valid ini file (line 2)"),
        (f"[api]\napi_token = {TOKEN}\napi_token = {TOKEN}\n", "is no valid ini file (line 3)"),
        ("[api]\napi_url = https://x\n", "api_token in [api] is missing or empty"),
        ("[api]\napi_token =\napi_url = https://x\n", "api_token in [api] is missing or empty"),
        ("[api]\napi_token = <your token>\napi_url = https://x\n", "does not look like a token"),
        ("[api]\napi_token = short\napi_url = https://x\n", "does not look like a token"),
        (f"[api]\napi_token = {TOKEN}\n", "api_url in [api] is missing or empty"),
        (f"[api]\napi_token = {TOKEN}\napi_url = ftp://x\n", "api_url is no http address"),
        (f"[api]\napi_token = {TOKEN}\napi_url = http://[x\n", "api_url is no http address"),
        (f"[api]\napi_token = {TOKEN}\napi_url = http://example.com\n", "travel in the clear"),
    ],
)
def test_unusable_credentials_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    path = tmp_path / "client.ini"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv(INI_VARIABLE, str(path))
    line = failure(read_credentials)
    assert message in line
    assert str(path) in line


def test_an_ini_file_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "client.ini"
    path.write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv(INI_VARIABLE, str(path))
    assert "cannot be read" in failure(read_credentials)
    monkeypatch.setenv(INI_VARIABLE, str(tmp_path))
    assert "cannot be read" in failure(read_credentials)


def test_the_default_file_is_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INI_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".qai_hub").mkdir()
    case.write_ini(tmp_path / ".qai_hub" / "client.ini", "https://workbench.example")
    found = read_credentials()
    assert found.token == TOKEN  # a percent sign and all
    assert TOKEN not in repr(found)


def test_a_wrong_token_is_refused_before_any_upload(hub: FakeHub, place: Place, tmp_path: Path) -> None:
    case.write_ini(tmp_path / "client.ini", hub.url, "another-token-1234")
    assert f"AI Hub refuses the token of {tmp_path / 'client.ini'}" in failure(place.compile)
    assert hub.requests == [("GET", "devices")]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("samsung galaxy s24", "did you mean Samsung Galaxy S2"),
        ("Galaxy S23", f"did you mean {S23}"),
        ("Pixel", f"known: {S23}, {S24}"),
        ([S24, "Samsung Galaxy S32"], "has no device 'Samsung Galaxy S32'; did you mean"),
        (S23, "has soc_model 43, htp_arch 73; sm8650 is soc_model 57, htp_arch 75"),
    ],
)
def test_a_device_that_cannot_be_meant(hub: FakeHub, place: Place, device: Any, message: str) -> None:
    assert message in failure(lambda: place.compile(replace(SM8650, device=device)))
    assert hub.posts("models") == 0


def test_a_model_that_the_service_refuses(hub: FakeHub, place: Place) -> None:
    hub.refuse_model = '{"detail": "models of this kind are not accepted"}'
    line = failure(place.compile)
    assert "upload model" in line
    assert "not accepted" in line
    assert hub.posts("models") == 1


def test_missing_weights_are_told_before_the_upload(hub: FakeHub, place: Place) -> None:
    (place.root / "quantized" / "kokoro_decoder.weights").unlink()
    assert "its weights cannot be read" in failure(place.compile)
    assert hub.posts("models") == 0


@pytest.mark.parametrize("kind", ["drop", "lose", "slow", "status"])
def test_a_part_upload_that_fails_is_repeated(hub: FakeHub, place: Place, kind: str) -> None:
    hub.part_size = 500
    fault = Fault(kind, 503, 0.05)
    hub.fault = lambda _, method, path: fault if (method, path[-2:]) == ("PUT", "/1") and puts() < 3 else None

    def puts() -> int:
        return sum(method == "PUT" and path.endswith("/1") for method, path in hub.requests)

    assert place.compile()["compiled"]
    assert puts() == (1 if kind == "slow" else 3)
    assert len(hub.jobs) == 1


def test_a_slow_service_is_waited_for(hub: FakeHub, place: Place) -> None:
    hub.fault = lambda *_: Fault("slow", seconds=0.03)
    assert place.compile()["compiled"]
    assert place.profile()["device_quantized_snr_db_min"] > 40
    assert len(hub.jobs) == 2


def test_a_part_without_an_etag(hub: FakeHub, place: Place) -> None:
    hub.no_etag = True
    assert "ETag not received" in failure(lambda: place.compile(patience_seconds=0.1))


def test_measuring_needs_what_was_compiled(hub: FakeHub, place: Place) -> None:
    assert "run the stage qai-compile with compile.backend=aihub" in failure(place.profile)
    place.compile()
    (place.compiled / f"kokoro_decoder_{FRAMES}_ctx_qnn.bin").unlink()
    assert "run the stage qai-compile again" in failure(place.profile)
    assert hub.posts("datasets") == 0


@pytest.mark.usefixtures("hub")
def test_without_the_client(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qai_hub", None)
    monkeypatch.setitem(sys.modules, "qai_hub.util", None)
    assert "pip install -e '.[aihub]'" in failure(place.compile)


# --- C: several devices ---


def test_two_devices_at_once_with_a_table(hub: FakeHub, place: Place) -> None:
    hub.polls = 3
    assert place.compile(several(S24, S23))["device"] == S24
    table = pd.read_csv(place.compiled / "devices.csv")
    assert table[["device", "compiled", "soc_model"]].to_numpy().tolist() == [[S24, True, 57], [S23, True, 43]]
    # Side by side: the second was submitted before the first had ended.
    posts = [i for i, request in enumerate(hub.requests) if request == ("POST", "jobs")]
    downloads = [i for i, (_, path) in enumerate(hub.requests) if path.endswith("/download")]
    assert max(posts) < min(downloads)
    assert hub.posts("models") == 1
    place.profile()
    measured = pd.read_csv(place.profiled / "devices.csv")
    assert measured["device"].tolist() == [S24, S23]
    assert measured["quantized_snr_db_min"].min() > 40
    assert hub.posts("datasets") == 1
    assert len(set(hub.names())) == len(hub.names()) == 4


def test_names_that_differ_in_a_sign_do_not_meet(hub: FakeHub, place: Place) -> None:
    plus = f"{S24}+"
    hub.devices.append((plus, "14", PHONE[2]))
    hub.compiler = lambda model, options, device: case.make_binary(model, options, S23 if device == plus else device)
    place.compile(several(S24, plus))  # another chip's binary for the second
    table = pd.read_csv(place.compiled / "devices.csv", keep_default_na=False)
    assert table["compiled"].tolist() == [True, False]
    hub.compiler = case.make_binary
    for path in (place.root / "aihub").iterdir():
        path.unlink()
    hub.jobs.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(case.CHIPS, plus, (57, 75))
        place.compile(several(S24, plus))
        place.profile()
    measured = pd.read_csv(place.profiled / "devices.csv", keep_default_na=False)
    assert measured["reason"].tolist() == ["", ""]
    assert sorted(p.name for p in place.profiled.iterdir()) == [
        "devices.csv", "samsung-galaxy-s24", "samsung-galaxy-s24-plus",
    ]  # fmt: skip
    sent = [job.pb.inference_job.model.model_id for job in hub.jobs.values() if job.pb.HasField("inference_job")]
    assert len(set(sent)) == 2


def test_one_devices_failure_does_not_lose_the_others(hub: FakeHub, place: Place) -> None:
    def compiler(model: bytes, options: str, device: str) -> bytes | str:
        return "out of memory" if device == S23 else case.make_binary(model, options, device)

    hub.compiler = compiler
    assert place.compile(several(S24, S23, TAB))["compiled"]
    table = pd.read_csv(place.compiled / "devices.csv", keep_default_na=False)
    assert table["compiled"].tolist() == [True, False, True]
    assert "out of memory" in table["reason"][1]
    hub.device = lambda inputs, name: "the phone broke" if name == S24 else case.speak(inputs)
    report = place.profile()
    assert report["device"] == S24
    assert "the phone broke" in report["device_reason"]
    assert report["quantized_latency_ms_p50"] is None
    measured = pd.read_csv(place.profiled / "devices.csv", keep_default_na=False)
    assert [bool(reason) for reason in measured["reason"]] == [True, True, False]
    assert (place.profiled / "samsung-galaxy-tab-s10" / "parity.csv").is_file()
    json.dumps(report, allow_nan=False)


def test_a_first_device_that_fails_leaves_the_others_binaries(hub: FakeHub, place: Place) -> None:
    hub.compiler = lambda m, o, d: "out of memory" if d == S24 else case.make_binary(m, o, d)
    report = place.compile(several(S24, TAB))
    assert not report["compiled"]
    assert "out of memory" in report["reason"]
    assert (place.compiled / "why.txt").is_file()
    assert (place.compiled / "samsung-galaxy-tab-s10" / f"kokoro_decoder_{FRAMES}_ctx_qnn.bin").is_file()
    report = place.profile()
    assert (report["device"], report["quantized_latency_ms_p50"]) == (S24, None)


def test_a_device_that_states_no_chip_is_taken_at_the_targets_word(hub: FakeHub, place: Place) -> None:
    hub.devices = [(PHONE[0], PHONE[1], ["framework:qnn"]), OLDER]
    assert place.compile()["compiled"]


# --- the token ---


def test_redaction_of_texts_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    redactor = Redactor(TOKEN)
    assert redactor.text(f"a {TOKEN} b") == "a [token] b"
    assert TOKEN not in repr(redactor)
    assert redactor.text("see https://s3/x?X-Amz-Signature=abc now") == "see https://s3/x?… now"
    factory = logging.getLogRecordFactory()
    with redacted_logging(redactor):
        logging.getLogger("any.child").warning("header %s", f"token {TOKEN}")
        logging.getLogger("any").warning("bad %d %d", TOKEN)
        try:
            raise ValueError(TOKEN)
        except ValueError:
            logging.getLogger("any").exception("failed")
    assert logging.getLogRecordFactory() is factory
    assert caplog.text.count("[token]") >= 3
    assert TOKEN not in caplog.text


def test_a_service_that_quotes_the_token_is_not_quoted(hub: FakeHub, place: Place) -> None:
    for status in (400, 403, 404, 413, 426):
        hub.fault = lambda *_, s=status: Fault("status", s)
        line = failure(place.compile)
        assert "[token]" in line or status in (413, 426)
    with connect(ServiceSettings(**place.settings)) as service:
        assert TOKEN not in f"{service!r} {service.redactor!r}"


# --- the plan ---


@pytest.mark.parametrize(
    ("overrides", "devices"),
    [
        (["compile=aihub"], S24),
        (["compile.backend=aihub", f"target.device={S23}"], S23),
        (["compile=aihub", f"target.device=[{S24},{S23}]"], [S24, S23]),
    ],
)
def test_the_plan_takes_the_backend(overrides: list[str], devices: str | list[str]) -> None:
    params = yaml.safe_load(compose(ROOT, overrides))
    assert (params["compile"]["backend"], params["target"]["device"]) == ("aihub", devices)
    ServiceSettings(**params["aihub"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("compile.backend=aihubb", "must be one of local, aihub"),
        ("target.device=[]", "must be a device's name or a list of them"),
        ("aihub.qairt_version=2.45", "a number in quotes"),
        ("aihub.target_runtime=tflite", "must be one of qnn_context_binary"),
        ("+aihub.retry_fail=true", "did you mean retry_failed"),
    ],
)
def test_the_plan_refuses_a_bad_setting(override: str, message: str) -> None:
    with pytest.raises((KokoroNpuError, OmegaConfBaseException)) as caught:
        compose(ROOT, [override])
    assert message in plan.one_line(caught.value)


@pytest.mark.parametrize("backend", ["aihub", "aihubb"])
def test_the_stage_itself(hub: FakeHub, place: Place, backend: str) -> None:
    """The stage qai-compile in a process of its own, from params.yaml to report and table."""
    params = yaml.safe_load(compose(ROOT, ["compile=aihub", f"bucket.frames={FRAMES}", "aihub.poll_seconds=1"]))
    params["compile"]["backend"] = backend
    (place.root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    weights = place.root / "artifacts" / "weights"
    weights.mkdir(parents=True)
    (weights / "source.json").write_text('{"source": "wheel", "label": "wheel"}', encoding="utf-8")
    (place.root / "quantized").rename(place.root / "artifacts" / "quantized")
    hub.compiler = lambda *_: f"the token is {TOKEN}"
    run = subprocess.run(
        [sys.executable, "-m", "stages.qai_compile", f"frames={FRAMES}"], cwd=place.root, capture_output=True,
        text=True, timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    case.assert_no_token(place.root, run.stdout, run.stderr)
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    if backend == "aihub":
        assert "AI Hub failed the job: the token is [token]" in last
        assert len(hub.jobs) == 1
    else:
        assert last.startswith("error: compile.backend is 'aihubb'")
        assert hub.requests == []


@pytest.mark.qnn
def test_a_real_binary_through_the_service(
    hub: FakeHub, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qualcomm's own compiler behind the loopback server: the reader and checks of the local backend take it."""
    if reason := toolchain.missing_reason():
        pytest.skip(reason)
    monkeypatch.undo()
    os.environ["NO_PROXY"] = "127.0.0.1"
    monkeypatch.setenv(INI_VARIABLE, str(tmp_path / "client.ini"))

    made = {}
    for name, chip in ((S24, SM8650), (S23, replace(SM8650, soc_model=43, htp_arch=73))):
        model = aihub.merged(place.model, tmp_path / "server" / "model.onnx")
        out = tmp_path / "server" / "out"
        report = compile_decoder(model, FRAMES, Spec("fp16", chip, CompileSettings(memory_reserve_gib=0.1)), out)
        assert report["compiled"], report["reason"]
        made[name] = next(out.glob("*.bin")).read_bytes()
    hub.compiler = lambda _model, _options, device: made[device]
    report = place.compile(several(S24, S23))
    assert report["qairt"].startswith("v")
    info = binary.read_binary(place.compiled / f"kokoro_decoder_{FRAMES}_ctx_qnn.bin")
    assert (info.soc_model, info.htp_arch) == (57, 75)
    assert pd.read_csv(place.compiled / "devices.csv")["compiled"].tolist() == [True, True]
    assert place.profile()["device_ops_npu"] == 2


@pytest.mark.aihub
def test_the_real_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small graph through the real service. Costs device time; runs only where a token is."""
    monkeypatch.undo()
    try:
        read_credentials()
    except KokoroNpuError as error:
        pytest.skip(str(error))
    patient: dict[str, float] = {
        "poll_seconds": 10,
        "patience_seconds": 300,
        "connect_seconds": 30,
        "job_seconds": 3600,
    }
    patient |= {"call_seconds": 120, "transfer_bytes": 32768, "backoff_seconds": 1, "settle_seconds": 30}
    place = Place(tmp_path, **patient)
    assert place.compile()["compiled"]
    report = place.profile()
    assert report["device_ops_npu"] > 0
    assert report["device_quantized_snr_db_min"] > 30
