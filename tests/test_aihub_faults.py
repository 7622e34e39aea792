"""Nothing lost, nothing twice: AI Hub runs that are killed at every step, and hundreds of random fault sequences."""

import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kokoro_npu.errors import KokoroNpuError
from tests import aihub_case as case
from tests.aihub_case import FRAMES, S23, S24, Place, several
from tests.aihub_server import TOKEN, FakeHub, Fault, serve

SEQUENCES, WORKERS, SEED = 240, 4, 20261120
KINDS = ("status", "drop", "lose", "garbage", "html", "empty", "cut", "hang", "slow", "late")
_LATE = 0.4  # seconds; of an answer that nobody waits for any more
_HASTY: dict[str, float] = {
    "call_seconds": 0.25, "patience_seconds": 0.4, "connect_seconds": 0.4, "settle_seconds": 0.8, "job_seconds": 5.0,
}  # fmt: skip
_CALM: dict[str, Any] = {"call_seconds": 30.0, "patience_seconds": 30.0, "connect_seconds": 30.0}
_COLLECTING = threading.Lock()
STATUSES = (429, 429, 500, 502, 503, 504, 400, 404)


pytestmark = pytest.mark.usefixtures("no_token_leaves")


# --- kill and resume ---


def _run(root: Path, what: str, rename: int = 0, after: bool = False, kill: Callable[[int], None] | None = None) -> int:
    """One run in a process of its own; its exit code, negative for a signal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.aihub_case", "qai_hub", "kokoro_npu.evaluate.device_profile"])
    process = context.Process(target=case.child, args=(str(root), str(root / "client.ini"), what, rename, after))
    # Starting a process also collects the exit codes of the others; a thread that reads one meanwhile gets 255.
    with _COLLECTING:
        process.start()
    assert process.pid is not None
    if kill is not None:
        kill(process.pid)
    if not multiprocessing.connection.wait([process.sentinel], 60):
        process.kill()
        pytest.fail(f"{what} did not end")
    with _COLLECTING:
        code = process.exitcode
    assert code is not None
    return code


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
    assert measured["device_quantized_snr_db_min"] > 40
    assert (root / "compiled" / str(FRAMES) / f"kokoro_decoder_{FRAMES}_ctx_qnn.bin").is_file()
    assert list(root.rglob(".*.part")) == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_killed_at_every_step_and_run_again(tmp_path: Path) -> None:
    """Killed as each request was processed but not answered, and before and after each file got its name."""
    requests, renames = _steps(tmp_path / "whole")
    points: list[tuple[str, int, int, bool]] = []  # run, request or 0, rename or 0, after the rename
    points += [(what, number, 0, False) for number, (what, _) in enumerate(requests, 1)]
    points += [(what, 0, n, after) for what in renames for n in range(1, renames[what] + 1) for after in (False, True)]
    assert len(points) > 50
    with ThreadPoolExecutor(3) as pool:
        killed = sum(pool.map(lambda item: _kill_once(tmp_path / str(item[0]), *item[1]), enumerate(points)))
    assert killed == len(points)
    print(f"kill points: {killed}; jobs submitted twice: 0; results lost: 0")


def _kill_once(root: Path, what: str, request: int, rename: int, after: bool) -> int:
    root.mkdir()
    victim: list[int] = []

    def kill_at(number: int, *_: str) -> None:
        if number == request:
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
        assert sorted(codes) == [-signal.SIGKILL, 0, 0], f"{what}, request {request}, rename {rename}: {codes}"
        _assert_nothing_lost_or_twice(hub, root)
    return 1


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


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_any_weather_ends_in_a_result_or_one_line(tmp_path: Path) -> None:
    """And afterwards, in calm, the same run gives the results, from jobs that were submitted once."""
    ends: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    with multiprocessing.get_context("forkserver").Pool(WORKERS) as pool:
        sequences = [(tmp_path, sequence) for sequence in range(SEQUENCES)]
        for ended, met in pool.starmap_async(_sequence, sequences, chunksize=5).get(timeout=600):
            ends += ended
            injected += met
    print(f"{SEQUENCES} sequences of compile and profile: {dict(ends)}; faults: {dict(injected)}; hangs: 0")
    assert sum(ends.values()) == 2 * SEQUENCES
    assert set(injected) == set(KINDS)
    assert min(ends.values()) > SEQUENCES // 20


def _sequence(tmp_path: Path, sequence: int) -> tuple[Counter[str], Counter[str]]:
    """One seed's weather over one compile and one profile, in a worker process; how they ended, and what they met."""
    case.use_made_binaries(setattr)
    logging.basicConfig(level=logging.DEBUG)  # to stderr, where the test looks for the token
    rng = random.Random(SEED + sequence)
    weather, ends = Weather(rng), Counter[str]()
    root = tmp_path / str(sequence)
    root.mkdir()
    with serve(case.hub(fault=weather, hide_new_jobs_for=rng.choice((0, 0, 1)))) as hub:
        case.point_to(case.write_ini(root / "client.ini", hub.url))
        place = Place(root, **_HASTY)
        target = several(S24, S23) if sequence % 4 == 0 else case.SM8650
        runs: dict[str, Callable[[], Any]] = {"compile": lambda: place.compile(target), "profile": place.profile}
        for name, run in runs.items():
            try:
                run()
                ends[f"{name}: result"] += 1
            except KokoroNpuError as error:
                _one_line(error)
                ends[f"{name}: one line"] += 1
        weather.over = True
        time.sleep(_LATE if weather.injected["late"] else 0)  # what nobody listened to is still processed
        assert place.compile(target, **_CALM)["compiled"], sequence
        assert place.profile(**_CALM)["device_quantized_snr_db_min"] > 40, sequence
        assert len(hub.names()) == len(set(hub.names())) == (4 if sequence % 4 == 0 else 2), f"{sequence}: twice"
    return ends, weather.injected
