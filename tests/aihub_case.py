"""A small decoder, its binary and its utterances, and the two runs (compile, measure) that the AI Hub tests make."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np
import onnx
from onnx import helper

from kokoro_npu.aihub.credentials import INI_VARIABLE
from kokoro_npu.aihub.settings import ServiceSettings
from kokoro_npu.compile import binary
from kokoro_npu.compile.backends import compile_decoder
from kokoro_npu.compile.options import CompileSettings, Spec, Target
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate.device_profile import profile_on_devices
from kokoro_npu.geometry import Bucket, source_steps
from tests.aihub_server import TOKEN, Arrays, FakeHub
from tests.small_graphs import save_model

FRAMES = 4
BUCKET = Bucket(FRAMES)
S24, S23, TAB = "Samsung Galaxy S24", "Samsung Galaxy S23", "Samsung Galaxy Tab S10"
SM8650 = Target("sm8650", "Snapdragon 8 Gen 3", 57, 75, 8, device=S24)
CHIPS = {S24: (57, 75), S23: (43, 73), TAB: (57, 75)}
_GAIN = np.linspace(0.5, 1.5, 300, dtype=np.float32).reshape(1, 300, 1)

FAST: dict[str, Any] = {
    "poll_seconds": 0.005, "patience_seconds": 2.0, "connect_seconds": 2.0, "job_seconds": 20.0, "call_seconds": 5.0,
    "transfer_bytes": 1e12, "backoff_seconds": 0.005, "settle_seconds": 0.05, "utterances": 2,
}  # fmt: skip


def write_ini(path: Path, url: str, token: str = TOKEN) -> Path:
    path.write_text(f"[api]\napi_token = {token}\napi_url = {url}\nweb_url = {url}\n", encoding="utf-8")
    return path


def decoder(folder: Path) -> Path:
    """A graph with the decoder's inputs and output, its weights in a shared file, as the pipeline writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"kokoro_decoder_{FRAMES}.onnx"
    if path.is_file():
        return path
    # Every input has a part in the audio, or the compiler would leave it out; the others' is next to nothing.
    others = [name for name in BUCKET.input_shapes if name != "energy"]
    nodes = [helper.make_node("ReduceMean", [n], [f"{n}_mean"], name=f"mean_{n}", keepdims=0) for n in others]
    nodes += [
        helper.make_node("Sum", [f"{n}_mean" for n in others], ["sum"], name="sum"),
        helper.make_node("Mul", ["sum", "tiny"], ["rest"], name="rest"),
        helper.make_node("Mul", ["energy", "gain"], ["scaled"], name="scale"),
        helper.make_node("Add", ["scaled", "rest"], ["mixed"], name="mix"),
        helper.make_node("Reshape", ["mixed", "flat"], ["audio"], name="flatten"),
    ]
    inputs: dict[str, tuple[int | str, ...]] = dict(BUCKET.input_shapes)
    constants: dict[str, np.ndarray] = {
        "gain": _GAIN,
        "tiny": np.array([1e-6], np.float32),
        "flat": np.array([1, BUCKET.samples], np.int64),
    }
    save_model(path, nodes, inputs, dict(BUCKET.output_shapes), constants)
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="kokoro_decoder.weights", size_threshold=512)
    assert (folder / "kokoro_decoder.weights").stat().st_size >= _GAIN.nbytes
    return path


def speak(inputs: Arrays, _device: str = "") -> Arrays:
    """What `decoder` computes, but for next to nothing."""
    return {"audio": [(energy * _GAIN).reshape(1, -1) for energy in inputs["energy"]]}


def utterances() -> list[ReferenceUtterance]:
    found = []
    for frames in (2, 3, FRAMES):
        rng = np.random.default_rng(frames)
        own = Bucket(frames).input_shapes
        features = {n: rng.standard_normal(own[n]).astype(np.float32) for n in own if not n.startswith("frame_")}
        features["noise"][:, :, source_steps(frames) :] = 0
        audio = (features["energy"] * _GAIN)[0, :, :].reshape(-1)
        whole = np.zeros((1, 1, BUCKET.f0_steps), np.float32)
        whole[:, :, : features["energy"].shape[2]] = features["energy"]
        clean = (whole * _GAIN).reshape(-1)[: 600 * frames]
        reference = (clean + 0.001 * rng.standard_normal(clean.shape)).astype(np.float32)
        assert audio.size == reference.size
        found.append(
            ReferenceUtterance(f"u{frames}", frames, 1.0, 0, features, reference,
                     np.zeros((1, 3), np.int64), np.zeros((1, 256), np.float32))
        )  # fmt: skip
    return found


# --- a binary that needs no compiler: what a binary says of itself, and a hash against damage ---


def make_binary(model: bytes, options: str, device: str) -> bytes:
    path_free = onnx.load_from_string(model)
    assert not any(tensor.external_data for tensor in path_free.graph.initializer), "weights did not come along"
    level = int(options.split("default_graph_htp_optimizations=O=")[1][0])
    told = {"device": device, "level": level, "model": hashlib.sha256(model).hexdigest()}
    text = json.dumps(told).encode().ljust(3000)
    return text + hashlib.sha256(text).hexdigest().encode()


def read_made_binary(path: Path | str) -> binary.BinaryInfo:
    data = Path(path).read_bytes()
    if hashlib.sha256(data[:-64]).hexdigest().encode() != data[-64:]:
        raise KokoroNpuError(f"{path}: cannot be read back: damaged")
    told = json.loads(data[:-64])
    soc, arch = CHIPS[told["device"]]
    inputs = {name: (shape, "float32") for name, shape in BUCKET.input_shapes.items()}
    outputs = {name: (shape, "float32") for name, shape in BUCKET.output_shapes.items()}
    return binary.BinaryInfo(soc, arch, "v2.45", (binary.GraphInfo("g", inputs, outputs, 8, told["level"], {}),))


def use_made_binaries(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Replace the reader of binaries, and shorten the pauses of the client's own retries of transfers."""
    import time

    import backoff._sync

    from kokoro_npu.evaluate import device_profile

    set_attribute(binary, "read_binary", read_made_binary)
    set_attribute(device_profile, "read_binary", read_made_binary)
    real = time.sleep
    set_attribute(backoff._sync, "time", SimpleNamespace(sleep=lambda seconds: real(seconds / 1000)))


def hub(**changes: Any) -> FakeHub:
    return FakeHub(compiler=make_binary, device=speak, **changes)


class Place:
    """A working directory with a decoder, and the two runs in it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.model = decoder(root / "quantized")
        self.compiled, self.profiled = root / "compiled" / str(FRAMES), root / "profile" / str(FRAMES)
        self.settings = FAST | {"journal": str(root / "aihub")} | settings

    def compile(self, target: Target = SM8650, level: int = 2, **settings: Any) -> dict[str, Any]:
        chosen = CompileSettings("aihub", level, aihub=self.settings | settings)
        return compile_decoder(self.model, FRAMES, Spec("w8a16", target, chosen), self.compiled)

    def profile(self, **settings: Any) -> dict[str, Any]:
        decoders = {"": self.model, "quantized_": self.model}
        chosen = ServiceSettings(**self.settings | settings)
        return profile_on_devices(utterances(), BUCKET, decoders, self.compiled, chosen, self.profiled)


def several(*names: str) -> Target:
    return replace(SM8650, device=list(names))


def point_to(ini: Path) -> None:
    os.environ[INI_VARIABLE] = str(ini)
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"


def child(root: str, ini: str, what: str, kill_at: int, after: bool) -> None:
    """One run in a process of its own; at its ``kill_at``-th rename it kills itself, before or after it."""
    import signal

    point_to(Path(ini))
    use_made_binaries(setattr)
    real, seen = os.replace, 0

    def replace_or_die(*args: Any, **kwargs: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == kill_at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*args, **kwargs)
        if seen == kill_at and after:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace_or_die
    place = Place(Path(root))
    seen = 0  # the model's own files do not count
    report = place.compile() if what == "compile" else place.profile()
    os.replace = real
    (Path(root) / f"{what}.json").write_text(json.dumps(report | {"renames": seen}), encoding="utf-8")


def assert_no_token(root: Path, *texts: str) -> None:
    """Neither the token nor a form of it in any file below ``root`` but the ini file, nor in the texts."""
    forms = [form.encode() for form in (TOKEN, quote(TOKEN, safe=""), TOKEN[:20], "X-Amz-Signature")]
    files = [p for p in root.rglob("*") if p.is_file() and p.suffix != ".ini"]
    for name, data in [*((str(p), p.read_bytes()) for p in files), *(("text", text.encode()) for text in texts)]:
        assert not any(form in data for form in forms), f"the token is in {name}"
