"""Local compile backend: Qualcomm's offline HTP compiler in a child process.

No device, token or SDK download.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from kokoro_npu.compile import binary, memory, toolchain
from kokoro_npu.compile.options import Spec, provider_options, session_entries
from kokoro_npu.compile.report import not_compiled
from kokoro_npu.errors import KokoroNpuError

BACKEND = "qnn-htp-offline"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROVIDER_ERROR = re.compile(r"\[E:onnxruntime:[^,]*, qnn_\S+ [^]]*\] (?P<text>.*)")
_BEGUN = re.compile(r"^begin (\d+)$", re.MULTILINE)
_MESSAGE_CHARACTERS = 800


def _context_graph(path: Path, binary_name: str) -> str:
    """Let the context model at ``path`` point to ``binary_name``, and give the name of its graph in there.

    Raises:
        KokoroNpuError: more than its one EPContext node: something was left to the CPU.
    """
    model = onnx.load(str(path), load_external_data=False)
    nodes = [node.op_type for node in model.graph.node]
    if nodes != ["EPContext"]:
        others = sorted(set(nodes) - {"EPContext"})
        raise KokoroNpuError(
            f"{path.name}: {nodes.count('EPContext')} EPContext nodes and "
            f"{', '.join(others) or 'no other op'}; "
            "the whole decoder must be one EPContext node"
        )
    attributes = {attribute.name: attribute for attribute in model.graph.node[0].attribute}
    attributes["ep_cache_context"].s = binary_name.encode()
    onnx.save(model, str(path))
    return attributes["partition_name"].s.decode()


def _error_line(run: toolchain.WorkerRun) -> str:
    if run.death:
        return f"the compiler {run.death}"
    message = str(run.result.get("error") or f"the compiler ended with status {run.returncode}")
    # The provider's own lines say more than the session's, e.g. which node it refuses; the last is the cause.
    causes = [match["text"].strip() for match in _PROVIDER_ERROR.finditer(_COLOUR.sub("", run.log))]
    if causes and causes[-1] not in message:
        message += f" ({causes[-1]})"
    return message[:_MESSAGE_CHARACTERS]


SHARED_BINARY = "kokoro_decoder_qnn.bin"
"""The one binary of several buckets: their graphs, and the weights that these share."""


class LocalBackend:
    """Compiles with ``onnxruntime-qnn`` on this machine."""

    def compile(self, onnx_path: Path, frames: int, spec: Spec, out_dir: Path) -> dict[str, Any]:
        """See :func:`kokoro_npu.compile.backends.compile_decoder`."""
        return self.compile_shared({frames: onnx_path}, spec, out_dir, shared=False)[frames]

    def compile_shared(
        self, models: Mapping[int, Path], spec: Spec, out_dir: Path, *, shared: bool = True
    ) -> dict[int, dict[str, Any]]:
        """See :func:`~kokoro_npu.compile.backends.compile_decoders`; ``shared`` names the binary after all buckets."""
        # Options first: a typo is told even where nothing can be compiled.
        provider_options(spec.target, spec.settings, "")
        missing = toolchain.missing_reason()
        reports = {}
        for frames, path in models.items():
            refused = missing or memory.refusal(frames, spec.precision, spec.settings, memory.widest_tensor(path))
            reports[frames] = not_compiled(BACKEND, frames, spec, refused or "")
        todo = {frames: models[frames].resolve() for frames in sorted(models) if not reports[frames]["reason"]}
        while todo:
            measured = self._run(todo, spec, out_dir, shared=shared)
            for frames, values in measured.items():
                reports[frames] |= values
            # A bucket that would have taken the machine's last memory is left out, and the others start again.
            left_out = [frames for frames in todo if reports[frames]["reason"]]
            todo = {frames: path for frames, path in todo.items() if frames not in left_out} if left_out else {}
        return reports

    def _run(self, models: Mapping[int, Path], spec: Spec, out_dir: Path, *, shared: bool) -> dict[int, dict[str, Any]]:
        """Compile all into one binary; only the values that change are returned."""
        precision, target, settings = spec.precision, spec.target, spec.settings
        # Beside the final place, so that the outputs move by rename; fresh, because an existing _ctx.onnx
        # makes the compile fail.
        prefix = f".{out_dir.name}-"
        for leftover in out_dir.parent.glob(f"{prefix}*.part"):  # of a killed run
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, suffix=".part", dir=out_dir.parent) as scratch:
            place = Path(scratch).resolve()
            laid_out = _lay_out(models, place / "models")
            directory = toolchain.library_dir()
            assert directory is not None  # missing_reason() was None
            run = toolchain.run_worker(
                "compile",
                {
                    "models": [
                        # Bare names below a working directory: a graph's name in the binary is a hash of the path
                        # as given, and the same model in another clone must give the same bytes.
                        {"model": path.name, "context": str(_context(path, place)), "frames": frames}
                        for frames, path in laid_out.items()
                    ],
                    "provider_options": provider_options(target, settings, str(directory / "libQnnHtp.so")),
                    "session_entries": session_entries(
                        session__disable_cpu_ep_fallback="1", ep__context_enable="1", ep__context_embed_mode="0"
                    ),
                },
                cwd=place / "models",
                describe=f"compile {', '.join(map(str, models))} frames",
                min_available_bytes=int(settings.memory_reserve_gib * 2**30 / 2),
            )
            # Which one: the worker says so before it starts on each.
            begun = [int(match[1]) for match in _BEGUN.finditer(run.log) if int(match[1]) in models]
            frames = begun[-1] if begun else next(iter(models))
            what = f"compile of {frames} frames, {precision}, level {settings.optimization_level} for {target.name}"
            if run.guarded:
                reason = f"out of memory: {what} ended before it took the last; it needs more than estimated"
                measured = {"seconds": round(run.seconds, 1), "peak_rss_bytes": run.peak_rss_bytes}
                return {frames: {"reason": reason} | measured}
            if run.death or not run.result.get("ok"):
                extra = f", options {dict(settings.options)}" if settings.options else ""
                splitting = ", with graph splitting" if settings.graph_splitting else ""
                raise KokoroNpuError(f"{what}{splitting}{extra}: {_error_line(run)}")
            return self._collect(laid_out, place, run, spec, out_dir, shared=shared)

    @staticmethod
    def _collect(
        models: Mapping[int, Path],
        place: Path,
        run: toolchain.WorkerRun,
        spec: Spec,
        out_dir: Path,
        *,
        shared: bool,
    ) -> dict[int, dict[str, Any]]:
        """Check what the worker left, and move it to its place."""
        blobs = sorted(place.glob("*.bin"))
        contexts = {frames: _context(path, place) for frames, path in models.items()}
        lost = [path.name for path in contexts.values() if not path.is_file()]
        if lost or len(blobs) != 1:
            raise KokoroNpuError(
                f"the compiler left {len(blobs)} binaries and no usable {', '.join(lost) or 'binary'} "
                f"for {', '.join(map(str, models))} frames"
            )
        blob = blobs[0]
        if shared:
            blob = blob.rename(place / SHARED_BINARY)
        names = {frames: _context_graph(path, blob.name) for frames, path in contexts.items()}
        info = binary.read_binary(blob)
        if sorted(graph.name for graph in info.graphs) != sorted(names.values()):
            raise KokoroNpuError(
                f"{blob.name}: holds {len(info.graphs)} graphs ({', '.join(g.name for g in info.graphs)}); "
                f"{len(models)} models were compiled into it ({', '.join(names.values())})"
            )
        for frames, path in models.items():
            own = replace(info, graphs=tuple(graph for graph in info.graphs if graph.name == names[frames]))
            what = f"{blob.name}, {path.stem}"
            binary.check_binary(own, spec.target, spec.settings.optimization_level, path, what)
        for file in (blob, *contexts.values()):
            os.replace(file, out_dir / file.name)
        shutil.rmtree(place / "models")
        for dump in place.iterdir():  # what dump options of the allow-list wrote beside it
            shutil.move(str(dump), out_dir / dump.name)
        size = (out_dir / blob.name).stat().st_size
        common = {"compiled": True, "binary_bytes": size, "graphs_in_binary": len(models), "qairt": info.qairt_build}
        # The peak is of the process that compiled all of them, one after the other: it counts what the former left.
        return {
            frames: common | {"graph": names[frames]} | measured
            for frames, measured in zip(models, run.result["measured"], strict=True)
        }


def _context(model: Path, directory: Path) -> Path:
    """Where the compiler is to leave a model's context model."""
    return directory / f"{model.stem}_ctx.onnx"


def _lay_out(models: Mapping[int, Path], directory: Path) -> dict[int, Path]:
    """Put the models, and the weights that they point to, into one directory, which is created."""
    directory.mkdir()
    for path in models.values():
        model = onnx.load(str(path), load_external_data=False)
        weights = {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        for name in (path.name, *sorted(weights)):
            _link(path.parent / name, directory / name)
    return {frames: directory / path.name for frames, path in models.items()}


def _link(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
