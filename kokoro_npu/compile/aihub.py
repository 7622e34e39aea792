"""The compiler of Qualcomm AI Hub, for devices that it has."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from kokoro_npu.aihub import devices, jobs, transfer
from kokoro_npu.aihub.journal import Journal, content_key
from kokoro_npu.aihub.service import Service, connect
from kokoro_npu.aihub.settings import ServiceSettings, compile_options
from kokoro_npu.build.reports import write_table
from kokoro_npu.compile import binary
from kokoro_npu.compile.options import Spec, Target
from kokoro_npu.compile.report import not_compiled, prepare, say_why
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.files import sha256, write_onnx
from kokoro_npu.graphs.reading import read_model

BACKEND = "aihub"
TABLE = "devices.csv"
"""One row a device: what came of it, its job's page, and its binary."""


def compile_decoder(onnx_path: Path, frames: int, spec: Spec, out_dir: Path) -> dict[str, Any]:
    """Compile one bucket for every device of ``target.device``, side by side.

    The first device's binary lies in the output directory, further ones in a directory of each device's name. The
    report is the first device's, the table tells of all; see :func:`kokoro_npu.compile.backends.compile_decoder`.

    Raises:
        KokoroNpuError: no device could be compiled for; nothing was uploaded when that could be known before.
    """
    prepare([onnx_path], out_dir)
    options, named = _options(spec), spec.target.device
    rows: list[dict[str, Any]] = []
    with connect(ServiceSettings(**spec.settings.aihub)) as service, ExitStack() as stack:
        found = devices.resolve(service, [named] if isinstance(named, str) else list(dict.fromkeys(named)))
        targets = [_target_of(device, spec.target, first=device is found[0]) for device in found]
        journal = Journal(service.settings.journal, service.redactor)
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="kokoro-aihub-"))
        model = merged(onnx_path, Path(scratch) / onnx_path.name)
        digest = sha256(model)
        requests = [_request(service, journal, model, digest, frames, device, options) for device in found]
        for request in requests:
            stack.enter_context(journal.locked(request.entry))
        outcomes = jobs.run_jobs(service, journal, requests)
        for device, target, request, outcome in zip(found, targets, requests, outcomes, strict=True):
            row: dict[str, Any] = {
                "device": device.name, "backend": BACKEND, "compiled": False, "reason": outcome.error,
                "soc_model": target.soc_model, "htp_arch": target.htp_arch, "binary_bytes": 0, "seconds": 0.0,
                "qairt": "", "binary": "", "sha256": "", "job": journal.read(request.entry).get("url", ""),
                "options": options,
            }  # fmt: skip
            if outcome.job_id:
                place = out_dir if device is found[0] else out_dir / device.slug
                path = place / f"{onnx_path.stem}_ctx_qnn.bin"  # the name that the local compiler gives
                try:
                    info, found_digest = _fetch(service, journal, request, outcome.job_id, path)
                    level, what = spec.settings.optimization_level, f"{request.label}: {path.name}"
                    binary.check_binary(info, target, level, onnx_path, what)
                    row |= {"compiled": True, "binary_bytes": path.stat().st_size, "qairt": info.qairt_build}
                    row |= {"binary": str(path.relative_to(out_dir)), "sha256": found_digest}
                    row["seconds"] = _seconds(journal.read(request.entry))
                except KokoroNpuError as error:
                    path.unlink(missing_ok=True)
                    row["reason"] = str(error)
            rows.append(row)
    if not any(row["compiled"] for row in rows):
        raise KokoroNpuError("; ".join(dict.fromkeys(str(row["reason"]) for row in rows)))
    write_table(out_dir / TABLE, pd.DataFrame(rows))
    # The service does not tell the memory that it took.
    shared = ("device", "compiled", "reason", "binary_bytes", "seconds", "qairt")
    report = not_compiled(BACKEND, frames, spec) | {key: rows[0][key] for key in shared}
    say_why(report, out_dir)
    return report


def _options(spec: Spec) -> str:
    settings = spec.settings
    if settings.options:
        raise KokoroNpuError(
            "compile.options are options of the local compiler; under backend aihub set aihub.compile_options"
        )
    return compile_options(ServiceSettings(**settings.aihub), settings.optimization_level, spec.target.vtcm_mb)


def _target_of(device: devices.Device, target: Target, first: bool) -> Target:
    """The chip that the device's binary must be for.

    Raises:
        KokoroNpuError: the first device's chip is not the target; asked before anything is uploaded.
    """
    soc, arch = device.soc_model or target.soc_model, device.htp_arch or target.htp_arch
    if first and (soc, arch) != (target.soc_model, target.htp_arch):
        raise KokoroNpuError(
            f"target.device: {device.name} has soc_model {soc}, htp_arch {arch}; {target.name} is soc_model "
            f"{target.soc_model}, htp_arch {target.htp_arch}: name a device with this chip first, or choose its target"
        )
    return replace(target, name=device.name, soc_model=soc, htp_arch=arch)


def merged(onnx_path: Path, target: Path) -> Path:
    """Write the model with its weights inside, and give its place.

    The decoders of all buckets point into one weight file. The service takes a model either as one file or as a
    directory with one ``.onnx`` and one ``.data`` (``qai_hub.client._get_model_dir_type``), so a shared file of another
    name cannot go up as it is. One file also has the same bytes, and so the same key, on every machine; an archive of a
    directory has not.
    """
    write_onnx(target, read_model(onnx_path))
    return target


def _request(
    service: Service, journal: Journal, model: Path, digest: str, frames: int, device: devices.Device, options: str
) -> jobs.Request:
    import qai_hub

    def upload() -> str:
        return transfer.uploaded_id(
            service,
            journal,
            f"model-{digest[:32]}",
            f"model {model.name}",
            lambda client, known: bool(client.get_model(known)),
            lambda client: str(client.upload_model(str(model), name=f"kokoro-npu {model.stem} {digest}").model_id),
            model.stat().st_size,
        )

    def submit(client: qai_hub.Client, model_id: str) -> str:
        job = client.submit_compile_job(
            client.get_model(model_id), qai_hub.Device(device.name), name=request.name, options=options, retry=False
        )
        assert isinstance(job, qai_hub.CompileJob)  # one device
        return job.job_id

    key, label = content_key(jobs.COMPILE, digest, options, device.name), f"compile {frames} frames on {device.name}"
    request = jobs.Request(jobs.COMPILE, key, label, upload, submit)
    return request


def _fetch(
    service: Service, journal: Journal, request: jobs.Request, job_id: str, path: Path
) -> tuple[binary.BinaryInfo, str]:
    """Download the binary; what it is, and its SHA-256. It needs no upload any more: the service has it as a model."""
    produced = ""

    def fetch(client: Any, place: str) -> str | None:
        nonlocal produced
        model = client.get_job(job_id).get_target_model()
        if model is None:
            return None
        produced = model.model_id
        return str(model.download(place))

    info = transfer.download(service, f"download of {request.label}", fetch, binary.read_binary, path)
    digest = sha256(path)
    journal.update(f"binary-{digest[:32]}", id=produced, what=f"binary {path.name}")
    return info, digest


def _seconds(entry: Mapping[str, Any]) -> float:
    # A job that was found by its name was submitted by another run: only its end was seen.
    return round(float(entry["finished_at"] - entry.get("submitting_at", entry["finished_at"])), 1)
