"""A build to an SDK bundle: the same build gives the same bytes."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx

from kokoro_npu.compile.options import Target
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, write_json
from kokoro_npu.sdk.bundle import digest_line
from kokoro_npu.sdk.card import model_card
from kokoro_npu.sdk.manifest import DIGEST, MANIFEST, SCHEMA, Entry, check, compose, schema_text
from kokoro_npu.sdk.vectors import vectors_text
from kokoro_npu.speech.models import QUANTIZED, Models, models_of_build
from kokoro_npu.versions import TOOLS, tool_versions
from kokoro_npu.weights.canonical import load_source

_CPU = {"duration": "cpu/kokoro_duration.onnx", "prosody": "cpu/kokoro_prosody.onnx"}
_QUALITY = (
    "backend", "precision", "utterances", "torch_snr_db_min", "fp32_snr_db_min", "quantized_snr_db_min",
    "quantized_magspec_corr_min", "quantized_logmel_mae_max",
)  # fmt: skip
_KOTLIN = ("KokoroHost.kt", "HostCheck.kt")


@dataclass(frozen=True)
class Build:
    """What is packaged.

    Attributes:
        artifacts: the directory of the build's outputs.
        reports: the directory of its reports.
        buckets: frames of its buckets.
        precision: of its quantized decoders, such as ``w8a16``.
        target: the chip of its context binaries.
    """

    artifacts: Path
    reports: Path
    buckets: Sequence[int]
    precision: str
    target: Target


def write_bundle(build: Build, precisions: Sequence[str], licences: Sequence[Path], out_dir: Path) -> dict[str, Any]:
    """Write a bundle, in the place of one that was there before.

    Args:
        build: what is packaged.
        precisions: decoders to hold: ``quantized``, ``fp32`` or both.
        licences: files that go into the bundle under their names.
        out_dir: the bundle's directory.

    Returns:
        The manifest.

    Raises:
        KokoroNpuError: something is not built, or was built in another precision than its report says.
    """
    held = {name: models_of_build(build.artifacts, name, build.buckets) for name in sorted(precisions)}
    quality = [_quality(build, frames) for frames in sorted(build.buckets)]
    with _directory(out_dir) as root:
        for name, path in _CPU.items():
            _copy(getattr(next(iter(held.values())), name), root / path)
        decoders = {name: dict(_copy_decoders(models, root, name)) for name, models in held.items()}
        voices = dict(_write_voices(next(iter(held.values())), root))
        write_json(root / "phonemes.json", next(iter(held.values())).vocab)
        for licence in licences:
            _copy(licence, root / licence.name)
        (root / SCHEMA).write_text(schema_text(), encoding="utf-8")
        (root / "reference").mkdir()
        for name in _KOTLIN:
            text = files(__package__).joinpath("data", name).read_text(encoding="utf-8")
            (root / "reference" / name).write_text(text, encoding="utf-8")
        (root / "reference/host_vectors.txt").write_text(vectors_text(), encoding="utf-8")

        entries = [
            _entry(build, frames, {name: paths[frames] for name, paths in decoders.items()}, root)
            for frames in sorted(build.buckets)
        ]
        facts = _facts(build, quality)
        if QUANTIZED in held:
            _copy(build.artifacts / "quantized/encodings.json", root / "decoder/quantized/encodings.json")
            facts["encodings"] = "decoder/quantized/encodings.json"
        (root / "README.md").write_text(model_card(facts, entries, sorted(voices)), encoding="utf-8")
        manifest = compose(root, entries, _CPU, voices, facts)
        check(manifest, MANIFEST)
        write_json(root / MANIFEST, manifest)
        (root / DIGEST).write_bytes(digest_line(root / MANIFEST))
    return manifest


@contextmanager
def _directory(out_dir: Path) -> Iterator[Path]:
    """A directory beside ``out_dir`` that takes its place when the block ends without an error."""
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    for leftover in out_dir.parent.glob(f".{out_dir.name}.*.part"):  # of a killed run
        shutil.rmtree(leftover, ignore_errors=True)
    tmp = out_dir.with_name(f".{out_dir.name}.{os.getpid()}.part")
    tmp.mkdir()
    try:
        yield tmp
        if out_dir.exists():
            shutil.rmtree(out_dir)
        tmp.rename(out_dir)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise KokoroNpuError(f"{source} is not there: build it first (make repro)")
    if not target.exists():  # the buckets' shared binary is there after the first
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _copy_decoders(models: Models, root: Path, precision: str) -> Iterator[tuple[int, str]]:
    """Frames of each decoder and its path in the bundle; the weights that they share go along."""
    for frames, path in sorted(models.decoders.items()):
        place = f"decoder/{precision}/{path.name}"
        _copy(path, root / place)
        for name in _external_files(path):
            _copy(path.with_name(name), (root / place).with_name(name))
        yield frames, place


def _external_files(model: Path) -> list[str]:
    graph = onnx.load(model, load_external_data=False).graph
    entries = (entry for tensor in graph.initializer for entry in tensor.external_data)
    return sorted({entry.value for entry in entries if entry.key == "location"})


def _entry(build: Build, frames: int, decoders: dict[str, str], root: Path) -> Entry:
    """One bucket of the manifest, its context binary copied where there is one: the shared one before its own."""
    report = _report(build, "compile", frames)
    shared = build.artifacts / "shared"
    place = shared / str(frames) / "bucket.json"  # what the bucket is called in the binary
    if place.is_file():
        names = read_json(place)
        directory, models, binaries, graph = shared, [names["context"]], [names["binary"]], names["graph"]
    elif not report["compiled"]:
        return Entry(frames, decoders, not_compiled=str(report["reason"]))
    else:
        directory = build.artifacts / "compiled" / str(frames)
        models = [path.name for path in sorted(directory.glob("*_ctx.onnx"))]  # AI Hub gives a binary alone
        found = directory.glob("*.bin")
        binaries = _context_binaries(directory / models[0]) if models else [path.name for path in found]
        graph = ""
    if len(models) > 1 or len(binaries) != 1:
        raise KokoroNpuError(
            f"{directory} holds {len(models)} context models and {len(binaries)} binaries where its report says "
            "compiled: run the stage qai-compile again"
        )
    for name in (*models, *binaries):
        _copy(directory / name, root / "htp" / name)
    return Entry(frames, decoders, f"htp/{models[0]}" if models else "", f"htp/{binaries[0]}", graph)


def _context_binaries(model: Path) -> list[str]:
    """Names of the binaries that the EPContext nodes of a model refer to."""
    nodes = onnx.load(model, load_external_data=False).graph.node
    named = (attribute for node in nodes for attribute in node.attribute if attribute.name == "ep_cache_context")
    return sorted({attribute.s.decode() for attribute in named})


def _write_voices(models: Models, root: Path) -> Iterator[tuple[str, str]]:
    (root / "voices").mkdir()
    for name, pack in sorted(models.voices.items()):
        path = f"voices/{name}.bin"
        (root / path).write_bytes(pack.astype("<f4").tobytes())
        yield name, path


def _report(build: Build, kind: str, frames: int) -> dict[str, Any]:
    path = build.reports / kind / f"{frames}.json"
    if not path.is_file():
        raise KokoroNpuError(f"{path} is not there: build it first (make repro)")
    report: dict[str, Any] = read_json(path)
    if report.get("precision") != build.precision:
        raise KokoroNpuError(f"{path} is of precision {report.get('precision')}, the build's is {build.precision}")
    return report


def _quality(build: Build, frames: int) -> dict[str, Any]:
    report = _report(build, "parity", frames)
    return {"frames": frames, **{key: report[key] for key in _QUALITY if key in report}}


def _facts(build: Build, quality: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    target = build.target
    compilers = {str(_report(build, "compile", frames)["qairt"]) for frames in build.buckets}
    return {
        "model": {
            "name": "Kokoro-82M",
            "version": "1.0",
            "licence": "Apache-2.0",
            "weights": load_source(build.artifacts / "weights"),
        },
        "precision": build.precision,
        "target": {
            "name": target.name,
            "chip": target.chip,
            "soc_model": target.soc_model,
            "htp_arch": target.htp_arch,
            "vtcm_mb": target.vtcm_mb,
            "qairt": ", ".join(sorted(compilers - {""})),
        },
        "tools": tool_versions(["kokoro-npu", *TOOLS]),
        "quality": list(quality),
    }
