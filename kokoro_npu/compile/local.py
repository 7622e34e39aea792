"""Qualcomm's offline HTP compiler in a child process on this machine: no device, token or SDK download."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from kokoro_npu.build import places
from kokoro_npu.compile import binary, memory, toolchain
from kokoro_npu.compile.options import Spec, provider_options
from kokoro_npu.compile.report import not_compiled, prepare, say_why
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.graphs.reading import external_files, read_graph

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROVIDER_ERROR = re.compile(r"\[E:onnxruntime:[^,]*, qnn_\S+ [^]]*\] (?P<text>.*)")
_BEGUN = re.compile(r"^begin (\d+)$", re.MULTILINE)
_MESSAGE_CHARACTERS = 800


def compile_decoder(onnx_path: Path, frames: int, spec: Spec, out_dir: Path) -> dict[str, Any]:
    """Compile one bucket here; see :func:`kokoro_npu.compile.backends.compile_decoder`."""
    prepare([onnx_path], out_dir)
    report = compile_decoders({frames: onnx_path}, spec, out_dir)[frames]
    report.pop("graph", None)  # the only one
    say_why(report, out_dir)
    return report


def compile_decoders(
    models: Mapping[int, Path], spec: Spec, out_dir: Path, binary_name: str = ""
) -> dict[int, dict[str, Any]]:
    """Compile decoders into one binary in the empty ``out_dir``, beside a context model of each.

    Args:
        models: frames to the bucket's decoder.
        spec: precision, chip, and how to compile.
        out_dir: receives the files.
        binary_name: of the binary; after the last model by default.

    Returns:
        Frames to the report of :func:`kokoro_npu.compile.backends.compile_decoder`, that of a compiled bucket with
        ``graph`` beside: its name in the binary. ``binary_bytes`` is the size of the whole binary.

    Raises:
        KokoroNpuError: as there; the message names the bucket.
    """
    provider_options(spec.target, spec.settings)  # a typo is told even where nothing can be compiled
    missing = toolchain.missing_reason()
    reports = {}
    for frames, path in models.items():
        refused = missing or memory.refusal(frames, spec.precision, spec.settings, memory.widest_tensor(path))
        reports[frames] = not_compiled(toolchain.BACKEND, frames, spec, refused)
    todo = {frames: models[frames].resolve() for frames in sorted(models) if not reports[frames]["reason"]}
    while todo:
        for frames, values in _run(todo, spec, out_dir, binary_name).items():
            reports[frames] |= values
        # A bucket that would have taken the machine's last memory is left out, and the others start again.
        left_out = [frames for frames in todo if reports[frames]["reason"]]
        todo = {frames: path for frames, path in todo.items() if frames not in left_out} if left_out else {}
    return reports


def _run(models: Mapping[int, Path], spec: Spec, out_dir: Path, binary_name: str) -> dict[int, dict[str, Any]]:
    """Compile all into one binary; only the values that change are returned."""
    settings = spec.settings
    # Beside the final place, so that the outputs move by rename; fresh, because an existing _ctx.onnx makes the compile
    # fail.
    prefix = f".{out_dir.name}-"
    for leftover in out_dir.parent.glob(f"{prefix}*.part"):  # of a killed run
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, suffix=".part", dir=out_dir.parent) as scratch:
        place = Path(scratch).resolve()
        laid_out = _lay_out(models, place / "models")
        run = toolchain.run_worker(
            "compile",
            {
                "models": [
                    # Bare names below a working directory: a graph's name in the binary is a hash of the path as given,
                    # and the same model in another clone must give the same bytes.
                    {"model": path.name, "context": str(places.context_model(place, path)), "frames": frames}
                    for frames, path in laid_out.items()
                ],
                "provider_options": provider_options(spec.target, settings),
                "session_entries": {
                    "session.disable_cpu_ep_fallback": "1", "ep.context_enable": "1", "ep.context_embed_mode": "0",
                },
            },
            cwd=place / "models",
            describe=f"compile {', '.join(map(str, models))} frames",
            reserve_gib=settings.memory_reserve_gib,
        )  # fmt: skip
        # Which one: the worker says so before it starts on each.
        begun = [int(match[1]) for match in _BEGUN.finditer(run.log)]
        frames = begun[-1] if begun else next(iter(models))
        what = f"compile of {frames} frames, {spec.precision}, level {settings.optimization_level}"
        what += f" for {spec.target.name}"
        if run.guarded:
            reason = f"out of memory: {what} needs more than estimated: {run.failure}"
            measured = {"seconds": round(run.seconds, 1), "peak_rss_bytes": run.peak_rss_bytes}
            return {frames: {"reason": reason} | measured}
        if run.failure:
            extra = f", options {dict(settings.options)}" if settings.options else ""
            raise KokoroNpuError(f"{what}{extra}: {_error_line(run)}")
        return _collect(laid_out, place, run, spec, out_dir, binary_name)


def _error_line(run: toolchain.WorkerRun) -> str:
    # The provider's own lines say more than the session's, e.g. which node it refuses; the last is the cause.
    causes = [match["text"].strip() for match in _PROVIDER_ERROR.finditer(_COLOUR.sub("", run.log))]
    extra = f" ({causes[-1]})" if run.returncode >= 0 and causes and causes[-1] not in run.failure else ""
    return (run.failure + extra)[:_MESSAGE_CHARACTERS]


def _lay_out(models: Mapping[int, Path], directory: Path) -> dict[int, Path]:
    """Put the models, and the weights that they point to, into one directory, which is created."""
    directory.mkdir()
    for path in models.values():
        for name in (path.name, *external_files(read_graph(path))):
            _link(path.parent / name, directory / name)
    return {frames: directory / path.name for frames, path in models.items()}


def _link(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _collect(
    models: Mapping[int, Path], place: Path, run: toolchain.WorkerRun, spec: Spec, out_dir: Path, binary_name: str
) -> dict[int, dict[str, Any]]:
    """Check what the worker left, and move it to its place."""
    blobs = sorted(place.glob("*.bin"))
    contexts = {frames: places.context_model(place, path) for frames, path in models.items()}
    lost = [path.name for path in contexts.values() if not path.is_file()]
    if lost or len(blobs) != 1:
        raise KokoroNpuError(f"the compiler left {len(blobs)} binaries and no usable {', '.join(lost) or 'binary'}")
    blob = blobs[0].rename(place / (binary_name or blobs[0].name))
    names = {frames: _context_graph(path, blob.name) for frames, path in contexts.items()}
    info = binary.read_binary(blob)
    if len(info.graphs) != len(models):
        raise KokoroNpuError(
            f"{blob.name}: holds {len(info.graphs)} graphs; {len(models)} models were compiled into it"
        )
    for frames, path in models.items():
        own = replace(info, graphs=tuple(graph for graph in info.graphs if graph.name == names[frames]))
        what = f"{blob.name}, {path.stem}"
        binary.check_binary(own, spec.target, spec.settings.optimization_level, path, what)
    size = blob.stat().st_size
    shutil.rmtree(place / "models")
    for file in place.iterdir():  # the dumps, too, that options of the allow-list ask for
        shutil.move(str(file), out_dir / file.name)
    common = {"compiled": True, "binary_bytes": size, "qairt": info.qairt_build}
    # The peak is of the process that compiled all of them, one after the other: it counts what the former left.
    return {
        frames: common | {"graph": names[frames]} | measured
        for frames, measured in zip(models, run.result["measured"], strict=True)
    }


def _context_graph(path: Path, binary_name: str) -> str:
    """Let the context model at ``path`` point to ``binary_name``, and give the name of its graph in there.

    Raises:
        KokoroNpuError: more than its one EPContext node: something was left to the CPU.
    """
    model = read_graph(path)
    nodes = [node.op_type for node in model.graph.node]
    if nodes != ["EPContext"]:
        others = sorted(set(nodes) - {"EPContext"})
        raise KokoroNpuError(
            f"{path.name}: {nodes.count('EPContext')} EPContext nodes and {', '.join(others) or 'no other op'}; "
            "the whole decoder must be one EPContext node"
        )
    attributes = {attribute.name: attribute for attribute in model.graph.node[0].attribute}
    attributes["ep_cache_context"].s = binary_name.encode()
    onnx.save(model, str(path))
    return attributes["partition_name"].s.decode()
