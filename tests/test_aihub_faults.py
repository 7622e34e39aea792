"""Nothing lost, nothing twice: AI Hub runs that are killed at every step, and hundreds of random fault sequences."""

import json
import logging
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kokoro_npu.aihub.credentials import INI_VARIABLE
from kokoro_npu.errors import KokoroNpuError
from tests import aihub_case as case
from tests.aihub_case import FRAMES, S23, S24, Place, several
from tests.aihub_server import TOKEN, FakeHub, Fault, serve

SEQUENCES, CHUNKS, SEED = 240, 8, 20261120
KINDS = ("status", "drop", "lose", "garbage", "html", "empty", "cut", "hang", "slow", "late")
_LIMIT, _LATE, _SETTLE = 0.2, 0.3, 0.5  # of a call; of answers that nobody waits for; must be past _LATE
STATUSES = (429, 429, 500, 502, 503, 504, 400, 404)


@pytest.fixture(autouse=True)
def _no_token_leaves(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    case.use_made_binaries(monkeypatch.setattr)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    caplog.set_level(logging.DEBUG)
    yield
    out, err = capfd.readouterr()
    case.assert_no_token(tmp_path, out, err, caplog.text)


# --- kill and resume ---


def _run(root: Path, what: str, rename: int = 0, after: bool = False, kill: Callable[[int], None] | None = None) -> int:
    """One run in a process of its own; its exit code, negative for a signal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.aihub_case", "qai_hub", "kokoro_npu.aihub.profile"])
    process = context.Process(target=case.child, args=(str(root), str(root / "client.ini"), what, rename, after))
    process.start()
    assert process.pid is not None
    if kill is not None:
        kill(process.pid)
    process.join(60)
    hung = process.is_alive()
    process.kill()
    assert not hung, f"{what} did not end"
    assert process.exitcode is not None
    return process.exitcode


def _steps(tmp_path: Path) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Requests and renames of an undisturbed compile and profile."""
    tmp_path.mkdir()
    with serve(case.hub()) as hub:
        case.write_ini(tmp_path / "client.ini", hub.url)
        assert _run(tmp_path, "compile") == 0
        compiled = len(hub.requests)
        assert _run(tmp_path, "profile") == 0
    renames = {what: json.loads((tmp_path / f"{what}.json").read_text())["renames"] for what in ("compile", "profile")}
    marks = ["compile"] * compiled + ["profile"] * (len(hub.requests) - compiled)
    return list(zip(marks, (" ".join(r) for r in hub.requests), strict=True)), renames


def _assert_nothing_lost_or_twice(hub: FakeHub, root: Path) -> None:
    twice = {name: count for name, count in Counter(hub.names()).items() if count > 1}
    assert not twice, "jobs were submitted twice"
    assert len(hub.names()) == 2
    assert json.loads((root / "compile.json").read_text())["compiled"]
    measured = json.loads((root / "profile.json").read_text())
    assert measured["device_quant_snr_db_min"] > 40
    assert (root / "compiled" / str(FRAMES) / f"kokoro_decoder_{FRAMES}_ctx_qnn.bin").is_file()
    assert list(root.rglob(".*.part")) == []


@pytest.mark.timeout(600)
def test_killed_at_every_step_and_run_again(tmp_path: Path) -> None:
    """Killed as each request was processed but not answered, and before and after each file got its name."""
    requests, renames = _steps(tmp_path / "whole")
    points: list[tuple[str, int, int, bool]] = []  # run, request or 0, rename or 0, after the rename
    points += [(what, number, 0, False) for number, (what, _) in enumerate(requests, 1)]
    points += [(what, 0, n, after) for what in renames for n in range(1, renames[what] + 1) for after in (False, True)]
    assert len(points) > 50
    killed = 0
    for index, (what, request, rename, after) in enumerate(points):
        root = tmp_path / str(index)
        root.mkdir()
        victim: list[int] = []

        def kill_at(number: int, *_: str, at: int = request, victim: list[int] = victim) -> None:
            if number == at:
                while not victim:
                    time.sleep(0.001)
                os.kill(victim.pop(), signal.SIGKILL)

        with serve(case.hub(processed=kill_at)) as hub:
            case.write_ini(root / "client.ini", hub.url)
            codes = []
            for run in ("compile", "profile"):
                hit = run == what
                kill = victim.append if hit and request else None
                codes.append(_run(root, run, rename if hit else 0, after, kill))
                if codes[-1]:
                    codes.append(_run(root, run))
            assert codes.count(-signal.SIGKILL) == 1, f"{what} was not killed at {request or rename}: {codes}"
            assert sorted(codes) == [-signal.SIGKILL, 0, 0]
            killed += 1
            _assert_nothing_lost_or_twice(hub, root)
    print(f"kill points: {killed}; jobs submitted twice: 0; results lost: 0")


# --- random faults ---


class Weather:
    """Faults of one seed: which request meets what. Once it is ``over``, none meets any."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._kinds = rng.sample(KINDS, rng.randint(1, 4))
        self._rate = rng.choice((0.03, 0.1, 0.3))
        self._only_posts = rng.random() < 0.2
        self.over = False
        self.injected: Counter[str] = Counter()

    def __call__(self, _number: int, method: str, _path: str) -> Fault | None:
        if self.over or (self._only_posts and method == "GET") or self._rng.random() > self._rate:
            return None
        kind = self._rng.choice(self._kinds)
        self.injected[kind] += 1
        seconds = {"slow": 0.03, "hang": _LATE, "late": _LATE}.get(kind, 0.0)
        return Fault(kind, self._rng.choice(STATUSES), seconds)


def _one_line(error: KokoroNpuError) -> str:
    line = str(error)
    assert "\n" not in line
    assert TOKEN not in line
    assert 20 < len(line) < 1200, line
    return line


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_any_weather_ends_in_a_result_or_one_line(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And afterwards, in calm, the same run gives the results, from jobs that were submitted once."""
    ends: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    slowest = 0.0
    for sequence in range(chunk, SEQUENCES, CHUNKS):
        rng = random.Random(SEED + sequence)
        weather = Weather(rng)
        root = tmp_path / str(sequence)
        root.mkdir()
        with serve(case.hub(fault=weather, hide_new_jobs_for=rng.choice((0, 0, 1)))) as hub:
            monkeypatch.setenv(INI_VARIABLE, str(case.write_ini(root / "client.ini", hub.url)))
            place = Place(
                root,
                call_seconds=_LIMIT,
                patience_seconds=0.4,
                connect_seconds=0.4,
                settle_seconds=_SETTLE,
                job_seconds=5.0,
            )
            target = several(S24, S23) if sequence % 4 == 0 else case.SM8650
            runs: list[tuple[str, Callable[[], dict[str, Any]]]] = [
                ("compile", lambda p=place, t=target: p.compile(t)),  # type: ignore[misc]
                ("profile", lambda p=place: p.profile()),  # type: ignore[misc]
            ]
            for name, run in runs:
                begun = time.monotonic()
                try:
                    run()
                    ends[f"{name}: result"] += 1
                except KokoroNpuError as error:
                    _one_line(error)
                    ends[f"{name}: one line"] += 1
                slowest = max(slowest, time.monotonic() - begun)
            weather.over = True
            time.sleep(_LATE if weather.injected["late"] else 0)  # what nobody listened to is still processed
            calm: dict[str, Any] = {"call_seconds": 30.0, "patience_seconds": 30.0, "connect_seconds": 30.0}
            assert place.compile(target, **calm)["compiled"], sequence
            assert place.profile(**calm)["device_quant_snr_db_min"] > 40, sequence
            twice = {name: count for name, count in Counter(hub.names()).items() if count > 1}
            assert not twice, f"sequence {sequence}: submitted twice: {twice}"
            assert len(hub.names()) == (4 if sequence % 4 == 0 else 2)
        injected += weather.injected
    print(f"sequences {sum(ends.values()) // 2}, ends {dict(ends)}, faults {dict(injected)}, slowest {slowest:.1f} s")
    assert sum(ends.values()) == 2 * SEQUENCES // CHUNKS
