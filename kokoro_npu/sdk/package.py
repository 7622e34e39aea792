"""A build to an SDK bundle: the same build gives the same bytes."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from kokoro_npu.build import places
from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.build.reports import read_report
from kokoro_npu.compile.options import Target
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import read_json, sha256, write_json
from kokoro_npu.geometry import VOICE_DIM
from kokoro_npu.sdk.manifest import CONSTANTS, DATA, DIGEST, MANIFEST, SCHEMA, bucket_facts, digest_line, tensors
from kokoro_npu.sdk.vectors import vectors_text
from kokoro_npu.speech.models import Models, models_of_build
from kokoro_npu.versions import TOOLS, tool_versions
from kokoro_npu.weights.canonical import VOICE_ROWS, load_source

_QUALITY = (
    "frames", "backend", "precision", "utterances", "torch_snr_db_min", "fp32_snr_db_min", "quantized_snr_db_min",
    "quantized_magspec_corr_min", "quantized_logmel_mae_max",
)  # fmt: skip
_TARGET = ("name", "chip", "soc_model", "htp_arch", "vtcm_mb")


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

    def read(self, kind: str) -> list[dict[str, Any]]:
        """The reports ``compile`` or ``parity`` of all buckets, smallest first, each with its ``frames``.

        Raises:
            KokoroNpuError: there is none, or it is of another precision.
        """
        found = []
        for frames in sorted(self.buckets):
            path = self.reports / kind / f"{frames}.json"
            report = read_report(path)
            if report["precision"] != self.precision:
                raise KokoroNpuError(f"{path} is of precision {report['precision']}, the build's is {self.precision}")
            found.append({**report, "frames": frames})
        return found


def write_bundle(build: Build, precisions: Sequence[str], licences: Sequence[Path], out_dir: Path) -> None:
    """Write a bundle, in the place of one that was there before.

    Its digest is written last: `kokoro_npu.sdk.bundle.open_bundle` refuses what a killed run leaves.

    Args:
        build: what is packaged.
        precisions: decoders to hold: ``quantized``, ``fp32`` or both.
        licences: files that go into the bundle under their names.
        out_dir: the bundle's directory.

    Raises:
        KokoroNpuError: something is not built, or was built in another precision than its report says.
    """
    held = {name: models_of_build(build.artifacts, name, build.buckets) for name in sorted(precisions)}
    compiled = build.read("compile")
    facts = {
        **CONSTANTS,
        "model": {
            "name": "Kokoro-82M",
            "version": "1.0",
            "licence": "Apache-2.0",
            "weights": load_source(build.artifacts / places.WEIGHTS.name),
        },
        "precision": build.precision,
        "target": {
            **{key: getattr(build.target, key) for key in _TARGET},
            "qairt": ", ".join(sorted({report["qairt"] for report in compiled} - {""})),
        },
        "tools": tool_versions(["kokoro-npu", *TOOLS]),
        "quality": [{key: report[key] for key in _QUALITY} for report in build.read("parity")],
    }
    shutil.rmtree(out_dir, ignore_errors=True)
    facts |= _copy_front(next(iter(held.values())), out_dir)
    decoders = {name: _copy_decoders(models, f"decoder/{name}", out_dir) for name, models in held.items()}
    facts["buckets"] = [
        {
            "decoders": {name: paths[report["frames"]] for name, paths in decoders.items()},
            **_copy_binary(build, report, out_dir),
            **bucket_facts(report["frames"], next(iter(held.values())).decoders[report["frames"]]),
        }
        for report in compiled
    ]
    if QUANTIZED in held:
        source = build.artifacts / places.QUANTIZED.name / places.ENCODINGS
        facts["encodings"] = _copy(source, f"decoder/{QUANTIZED}", out_dir)
    for path in (*licences, DATA / SCHEMA):
        _copy(path, "", out_dir)
    for path in DATA.glob("*.kt"):
        _copy(path, "reference", out_dir)
    (out_dir / "reference/host_vectors.txt").write_text(vectors_text(), encoding="utf-8")
    card = jinja2.Template((DATA / "README.md.j2").read_text(encoding="utf-8"), undefined=jinja2.StrictUndefined)
    (out_dir / "README.md").write_text(card.render(facts) + "\n", encoding="utf-8")
    files = [path for path in out_dir.rglob("*") if path.is_file()]
    facts["files"] = {
        path.relative_to(out_dir).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files
    }
    write_json(out_dir / MANIFEST, facts)
    (out_dir / DIGEST).write_bytes(digest_line(out_dir / MANIFEST))


def _copy(source: Path, directory: str, root: Path) -> str:
    """Copy a file into a directory of the bundle, unless it is there already, and give its path in the bundle."""
    target = root / directory / source.name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return target.relative_to(root).as_posix()


def _copy_front(models: Models, root: Path) -> dict[str, Any]:
    """Write what runs before the decoder, and give the manifest's keys of it."""
    cpu = {"duration": models.duration, "prosody": models.prosody}
    files = {name: f"voices/{name}.bin" for name in sorted(models.voices)}
    (root / "voices").mkdir(parents=True)
    for name, path in files.items():
        (root / path).write_bytes(models.voices[name].astype("<f4").tobytes())
    write_json(root / "phonemes.json", models.vocab)
    form = {"rows": VOICE_ROWS, "columns": VOICE_DIM, "dtype": "float32", "byte_order": "little"}
    return {
        "models": {name: {"path": _copy(path, "cpu", root), **tensors(path)} for name, path in cpu.items()},
        "voices": {**form, "files": files},
        "phonemes": "phonemes.json",
    }


def _copy_decoders(models: Models, directory: str, root: Path) -> dict[int, str]:
    """Copy decoders and the weights that they share, and give frames to path in the bundle."""
    for weights in {path.with_name(places.SHARED_WEIGHTS) for path in models.decoders.values()}:
        _copy(weights, directory, root)
    return {frames: _copy(path, directory, root) for frames, path in models.decoders.items()}


def _copy_binary(build: Build, report: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Copy a bucket's context binary, if there is one, and give the manifest's keys of it.

    The binary that the buckets share comes before the bucket's own.
    """
    frames = report["frames"]
    shared, own = build.artifacts / places.SHARED.name, build.artifacts / places.COMPILED.name / str(frames)
    if (names := shared / str(frames) / places.BUCKET_NAMES).is_file():
        named = read_json(names)
        binary, model, graph = shared / named["binary"], shared / named["context"], named["graph"]
    elif report["compiled"]:
        binary, graph = next(own.glob("*.bin"), own), None
        model = places.context_model(own, places.decoder(own, frames))
        if binary == own:
            raise KokoroNpuError(f"{own} holds no binary, though its report says compiled: run the stage qai-compile")
    else:
        return {"context_binary": None, "not_compiled": report["reason"]}
    context = _copy(model, "htp", root) if model.is_file() else None  # AI Hub gives a binary alone
    return {
        "context_binary": {"model": context, "binary": _copy(binary, "htp", root), "graph": graph},
        "not_compiled": "",
    }
