"""One inference job a device: its latency, memory and placement, and the parity of the audio that came back."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from kokoro_npu.aihub import devices, jobs, transfer
from kokoro_npu.aihub.journal import Journal, content_key
from kokoro_npu.aihub.service import Service, connect
from kokoro_npu.aihub.settings import ServiceSettings, inference_options
from kokoro_npu.build.labels import QUANTIZED
from kokoro_npu.build.reports import write_table
from kokoro_npu.compile.aihub import BACKEND, TABLE
from kokoro_npu.compile.binary import read_binary
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import parity
from kokoro_npu.files import sha256
from kokoro_npu.geometry import FRAMES_PER_SECOND, Array, Bucket
from kokoro_npu.graphs.cost import count
from kokoro_npu.host.steps import pad_to_bucket

if TYPE_CHECKING:
    import qai_hub

_MEASURED = ("rtf_p50", "latency_ms_p50", "latency_ms_p95", "load_ms", "runs", "peak_rss_bytes")
_UNITS = ("NPU", "GPU", "CPU")
_LAYER_COLUMNS = ("name", "type", "compute_unit", "execution_time_us", "execution_cycles")


@dataclass(frozen=True)
class _Sent:
    """What goes to one device, and what is expected back.

    Attributes:
        binary: the context binary.
        entries: arrays by input name in the binary's order, one an utterance.
        output: name of the output.
        samples: of each utterance that comes back.
        digest: of ``entries``.
    """

    binary: Path
    entries: dict[str, list[Array]]
    output: str
    samples: int
    digest: str


def profile_on_devices(
    recorded: Sequence[ReferenceUtterance],
    bucket: Bucket,
    decoders: dict[str, Path],
    compiled_dir: Path,
    settings: ServiceSettings,
    out_dir: Path,
) -> dict[str, Any]:
    """Run one bucket's compiled decoder on its devices, on real features.

    Args:
        recorded: evaluation utterances that fit the bucket.
        bucket: of the decoder.
        decoders: prefix of the report's keys to the float (empty prefix) and the quantized decoder (``quantized_``).
            Their cost is counted; the quantized one is what was compiled.
        compiled_dir: what the compile backend ``aihub`` left: binaries and their table.
        settings: of the service.
        out_dir: gets ``devices.csv``, and for each device ``<device>/layers.csv`` and ``<device>/parity.csv`` (columns
            of ``parity.evaluate``).

    Returns:
        The keys of ``profile_bucket``, ``quantized_…`` being the first device's (the decoder alone, without the CPU
        half) and those of the float decoder and of PyTorch None, for they do not run there; and ``device`` with
        ``device_…``: memory range in bytes, layers by compute unit, and the figures of ``parity.summarize``.

    Raises:
        KokoroNpuError: no binaries of this backend, or no device gave a result. The failures of single devices stand
            in the table.
    """
    path = compiled_dir / TABLE
    if not path.is_file():
        raise KokoroNpuError(f"{path} does not exist: run the stage qai-compile with compile.backend=aihub first")
    compiled = pd.read_csv(path, keep_default_na=False).to_dict("records")
    chosen = sorted(recorded, key=lambda item: -item.frames)[: settings.utterances]
    with connect(settings) as service:
        binaries = {str(row["device"]): compiled_dir / str(row["binary"]) for row in compiled if row["compiled"]}
        results = _run_all(service, binaries, chosen, bucket, out_dir)
    table: list[dict[str, Any]] = [
        {"device": row["device"], "backend": BACKEND, "reason": row["reason"], "qairt": row["qairt"]}
        | results.get(str(row["device"]), {})
        for row in compiled
    ]
    write_table(out_dir / TABLE, pd.DataFrame(table).convert_dtypes())  # a byte count stays one beside a failure
    if all(row["reason"] for row in table):
        raise KokoroNpuError("; ".join(dict.fromkeys(str(row["reason"]) for row in table)))
    for one in table:
        told = one["reason"] or (
            f"{one['latency_ms_p50']} ms, RTF {one['rtf_p50']}, {one['ops_npu']} layers on the NPU, "
            f"{one['ops_cpu']} on the CPU, {one['quantized_snr_db_min']:.1f} dB at worst"
        )
        print(f"{bucket.frames} frames on {one['device']}: {told}")
    columns = {key: None for row in table for key in row}  # a failed device has fewer
    return _report(columns | table[0], bucket, decoders, chosen[0].frames)


def _run_all(
    service: Service,
    binaries: Mapping[str, Path],
    chosen: Sequence[ReferenceUtterance],
    bucket: Bucket,
    out_dir: Path,
) -> dict[str, dict[str, Any]]:
    journal = Journal(service.settings.journal, service.redactor)
    found = devices.resolve(service, list(binaries))
    everything = [_sent(binaries[device.name], chosen, bucket) for device in found]
    requests = [
        _request(service, journal, sent, f"{bucket.frames} frames", device.name)
        for device, sent in zip(found, everything, strict=True)
    ]
    results: dict[str, dict[str, Any]] = {}
    with ExitStack() as locks:
        for request in requests:
            locks.enter_context(journal.locked(request.entry))
        outcomes = jobs.run_jobs(service, journal, requests)
        for device, request, sent, outcome in zip(found, requests, everything, outcomes, strict=True):
            row = {"job": journal.read(request.entry).get("url", ""), "reason": outcome.error}
            if outcome.job_id:
                try:
                    audio, profile = _fetch(service, journal, request, outcome.job_id, sent)
                    row |= _figures(audio, profile, chosen, bucket, out_dir / device.slug)
                except KokoroNpuError as error:
                    row["reason"] = str(error)
            results[device.name] = row
    return results


def _sent(binary: Path, chosen: Sequence[ReferenceUtterance], bucket: Bucket) -> _Sent:
    """The utterances as the binary's graph takes them; the service matches inputs by order as well as by name."""
    if not binary.is_file():
        raise KokoroNpuError(f"{binary} does not exist: run the stage qai-compile again")
    graph = read_binary(binary).graphs[0]
    padded = [pad_to_bucket(item.features, bucket) for item in chosen]
    entries = {name: [values[name] for values in padded] for name in graph.inputs}
    digest = content_key([[n, [hashlib.sha256(v.tobytes()).hexdigest() for v in vs]] for n, vs in entries.items()])
    return _Sent(binary, entries, next(iter(graph.outputs)), bucket.samples, digest)


def _request(service: Service, journal: Journal, sent: _Sent, size: str, device: str) -> jobs.Request:
    import qai_hub

    options, binary = inference_options(service.settings), sha256(sent.binary)

    def upload() -> tuple[str, str]:
        # Known without an upload where the service has made it: the compile noted that in the journal.
        model = transfer.uploaded_id(
            service,
            journal,
            f"binary-{binary[:32]}",
            f"binary {sent.binary.name}",
            lambda client, known: bool(client.get_model(known)),
            lambda client: str(client.upload_model(str(sent.binary), name=f"kokoro-npu {binary}").model_id),
            sent.binary.stat().st_size,
        )
        dataset = transfer.uploaded_id(
            service,
            journal,
            f"dataset-{sent.digest[:32]}",
            f"inputs of {size}",
            lambda client, known: not client.get_dataset(known).is_expired(),
            lambda client: str(client.upload_dataset(sent.entries, name=f"kokoro-npu {sent.digest}").dataset_id),
            sum(value.nbytes for values in sent.entries.values() for value in values),
        )
        return model, dataset

    def submit(client: qai_hub.Client, uploaded: tuple[str, str]) -> str:
        model, dataset = uploaded
        job = client.submit_inference_job(
            client.get_model(model),
            qai_hub.Device(device),
            client.get_dataset(dataset),
            name=request.name,
            options=options,
            retry=False,
            profile=True,
        )
        assert isinstance(job, qai_hub.InferenceJob)  # one device
        return job.job_id

    key = content_key(jobs.INFERENCE, binary, sent.digest, options, device)
    request = jobs.Request(jobs.INFERENCE, key, f"run {size} on {device}", upload, submit)
    return request


def _fetch(
    service: Service, journal: Journal, request: jobs.Request, job_id: str, sent: _Sent
) -> tuple[list[Array], dict[str, Any]]:
    """Audio and profile of a job that succeeded. The audio is kept beside the journal and not fetched again."""

    def job(client: "qai_hub.Client") -> Any:
        return client.get_job(job_id)

    def profile(client: "qai_hub.Client") -> dict[str, Any]:
        found: dict[str, Any] = job(client).download_profile()
        if not found.get("execution_summary", {}).get("estimated_inference_time") or not found["execution_detail"]:
            raise ValueError("the profile is empty")
        return found

    def read(path: Path) -> list[Array]:
        return _audio(path, sent)

    what, place = f"outputs of {request.label}", journal.directory / f"outputs-{request.key[:32]}-{job_id}.h5"
    audio = transfer.kept(read, place) or transfer.download(
        service, what, lambda client, path: job(client).download_output_data(path), read, place
    )
    return audio, service.call(f"profile of {request.label}", profile)


def _audio(path: Path, sent: _Sent) -> list[Array]:
    """Audio [1, 600 T] of each utterance from a dataset file.

    Raises:
        KokoroNpuError: no dataset, or not finite audio of the bucket's length for each utterance.
    """
    import h5py
    from qai_hub.util.dataset_entries_converters import h5_to_dataset_entries

    try:
        with h5py.File(path, "r") as file:
            entries = h5_to_dataset_entries(file)
    except (OSError, KeyError, ValueError, RuntimeError, AssertionError, TypeError) as error:
        raise KokoroNpuError(f"{path.name} is no dataset ({type(error).__name__})") from None
    values = entries.get(sent.output) if sent.output in entries or len(entries) != 1 else next(iter(entries.values()))
    if values is None:
        raise KokoroNpuError(f"the device returned {', '.join(entries) or 'nothing'} instead of {sent.output}")
    samples, wanted = sent.samples, len(next(iter(sent.entries.values())))
    audio = [np.asarray(value, dtype=np.float32) for value in values]
    if len(audio) != wanted or any(value.size != samples or not np.isfinite(value).all() for value in audio):
        raise KokoroNpuError(
            f"the device returned {sent.output} of shapes {[value.shape for value in audio]} (or not finite) "
            f"instead of {wanted} times {samples} samples"
        )
    return [value.reshape(1, samples) for value in audio]


def _figures(
    audio: list[Array], profile: dict[str, Any], chosen: Sequence[ReferenceUtterance], bucket: Bucket, out_dir: Path
) -> dict[str, Any]:
    """One device's columns of the table; writes its layers and its parity."""
    table = parity.evaluate(chosen, bucket, iter([(QUANTIZED, parity.replayed(audio))]))
    write_table(out_dir / "parity.csv", table)
    layers = pd.DataFrame(profile["execution_detail"]).rename(columns={"execution_time": "execution_time_us"})
    write_table(out_dir / "layers.csv", layers.reindex(columns=list(_LAYER_COLUMNS)))
    summary = profile["execution_summary"]
    # Microseconds; each run's where the service gives them, else its own estimate.
    times = summary.get("all_inference_times") or [summary["estimated_inference_time"]]
    p50, p95 = (float(np.percentile(times, q)) / 1e6 for q in (50, 95))
    low, high = summary.get("inference_memory_peak_range") or (None, None)
    units = layers["compute_unit"].value_counts()
    return {
        "runs": len(times),
        "rtf_p50": round(p50 * FRAMES_PER_SECOND / chosen[0].frames, 4),
        "latency_ms_p50": round(1000 * p50, 3),
        "latency_ms_p95": round(1000 * p95, 3),
        "load_ms": _milliseconds(summary.get("warm_load_time")),
        "first_load_ms": _milliseconds(summary.get("first_load_time")),
        "peak_rss_bytes": summary.get("estimated_inference_peak_memory") or None,
        "memory_low_bytes": low,
        "memory_high_bytes": high,
        **{f"ops_{unit.lower()}": int(units.get(unit, 0)) for unit in _UNITS},
        **parity.summarize(table),
    }


def _milliseconds(microseconds: Any) -> float | None:
    return round(microseconds / 1000, 1) if microseconds else None


def _report(row: dict[str, Any], bucket: Bucket, decoders: dict[str, Path], frames: int) -> dict[str, Any]:
    report: dict[str, Any] = {"backend": BACKEND, "frames": bucket.frames, "utterance_frames": frames, "threads": None}
    for prefix, decoder in decoders.items():
        cost = count(decoder)
        report |= {f"{prefix}{key}": row.get(key) if prefix else None for key in _MEASURED} | {"gmacs": cost.gmacs}
        report |= {f"{prefix}{key}": getattr(cost, key) for key in ("weight_bytes", "activation_bytes")}
    report |= {f"torch_{key}": None for key in _MEASURED}
    own = {f"device_{key}": value for key, value in row.items() if key not in (*_MEASURED, "backend", "device")}
    return report | {"device": row["device"]} | own
