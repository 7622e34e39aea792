"""Local compile backend: Qualcomm's offline HTP compiler in a child process.

No device, token or SDK download.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import onnx

from kokoro_npu.compile import binary, memory, toolchain
from kokoro_npu.compile.options import CompileSettings, Target, provider_options, session_entries
from kokoro_npu.errors import KokoroNpuError

BACKEND = "qnn-htp-offline"

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROVIDER_ERROR = re.compile(r"\[E:onnxruntime:[^,]*, qnn_\S+ [^]]*\] (?P<text>.*)")
_MESSAGE_CHARACTERS = 800


def _check_context_model(path: Path) -> None:
    """One EPContext node and nothing beside it, or something was left to the CPU."""
    nodes = [node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node]
    if nodes != ["EPContext"]:
        others = sorted(set(nodes) - {"EPContext"})
        raise KokoroNpuError(
            f"{path.name}: {nodes.count('EPContext')} EPContext nodes and "
            f"{', '.join(others) or 'no other op'}; "
            "the whole decoder must be one EPContext node"
        )


def _error_line(run: toolchain.WorkerRun) -> str:
    if run.death:
        return f"the compiler {run.death}"
    message = str(run.result.get("error") or f"the compiler ended with status {run.returncode}")
    # The provider's own lines say more than the session's, e.g. which node it refuses; the last is the cause.
    causes = [match["text"].strip() for match in _PROVIDER_ERROR.finditer(_COLOUR.sub("", run.log))]
    if causes and causes[-1] not in message:
        message += f" ({causes[-1]})"
    return message[:_MESSAGE_CHARACTERS]


class LocalBackend:
    """Compiles with ``onnxruntime-qnn`` on this machine."""

    def compile(
        self,
        onnx_path: Path,
        frames: int,
        precision: str,
        target: Target,
        settings: CompileSettings,
        out_dir: Path,
    ) -> dict[str, Any]:
        """See :func:`kokoro_npu.compile.compile_decoder`."""
        # Options first: a typo is told even where nothing can be compiled.
        provider_options(target, settings, "")
        report: dict[str, Any] = {
            "backend": BACKEND,
            "compiled": False,
            "reason": "",
            "frames": frames,
            "precision": precision,
            "soc_model": target.soc_model,
            "htp_arch": target.htp_arch,
            "optimization_level": settings.optimization_level,
            "graph_splitting": settings.graph_splitting,
            "estimated_bytes": memory.estimate_bytes(frames, precision, settings),
            "binary_bytes": 0,
            "seconds": 0.0,
            "peak_rss_bytes": 0,
            "qairt": "",
            **toolchain.versions(),
        }
        reason = toolchain.missing_reason() or memory.refusal(
            frames, precision, settings, memory.widest_tensor(onnx_path)
        )
        if reason:
            return report | {"reason": reason}
        return report | self._run(onnx_path.resolve(), frames, precision, target, settings, out_dir)

    def _run(
        self,
        onnx_path: Path,
        frames: int,
        precision: str,
        target: Target,
        settings: CompileSettings,
        out_dir: Path,
    ) -> dict[str, Any]:
        what = f"compile of {frames} frames, {precision}, level {settings.optimization_level} for {target.name}"
        # Beside the final place, so that the outputs move by rename; fresh, because an existing _ctx.onnx
        # makes the compile fail.
        prefix = f".{out_dir.name}-"
        for leftover in out_dir.parent.glob(f"{prefix}*.part"):  # of a killed run
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, suffix=".part", dir=out_dir.parent) as scratch:
            context = Path(scratch) / f"{onnx_path.stem}_ctx.onnx"
            directory = toolchain.library_dir()
            assert directory is not None  # missing_reason() was None
            run = toolchain.run_worker(
                "compile",
                {
                    # A bare name below a fixed working directory: the graph's name in the binary is a hash of
                    # the path as given, and the same model in another clone must give the same bytes.
                    "model": onnx_path.name,
                    "provider_options": provider_options(target, settings, str(directory / "libQnnHtp.so")),
                    "session_entries": session_entries(
                        session__disable_cpu_ep_fallback="1",
                        ep__context_enable="1",
                        ep__context_embed_mode="0",
                        ep__context_file_path=str(context.resolve()),
                    ),
                },
                cwd=onnx_path.parent,
                describe=f"compile {frames} frames",
                min_available_bytes=int(settings.memory_reserve_gib * 2**30 / 2),
            )
            measured = {"seconds": round(run.seconds, 1), "peak_rss_bytes": run.peak_rss_bytes}
            if run.guarded:
                return {
                    "reason": f"out of memory: {what} ended before it took the last; it needs more than estimated"
                } | measured
            if run.death or not run.result.get("ok"):
                extra = f", options {dict(settings.options)}" if settings.options else ""
                splitting = ", with graph splitting" if settings.graph_splitting else ""
                raise KokoroNpuError(f"{what}{splitting}{extra}: {_error_line(run)}")
            blobs = sorted(Path(scratch).glob("*.bin"))
            if not context.is_file() or len(blobs) != 1:
                raise KokoroNpuError(f"{what}: the compiler left {len(blobs)} binaries and no usable {context.name}")
            _check_context_model(context)
            info = binary.read_binary(blobs[0])
            binary.check_binary(info, target, settings.optimization_level, onnx_path, blobs[0].name)
            for path in (blobs[0], context):
                os.replace(path, out_dir / path.name)
            for dump in Path(scratch).iterdir():  # what dump options of the allow-list wrote beside it
                shutil.move(str(dump), out_dir / dump.name)
        return {
            "compiled": True,
            "binary_bytes": (out_dir / blobs[0].name).stat().st_size,
            "qairt": info.qairt_build,
            **measured,
        }
