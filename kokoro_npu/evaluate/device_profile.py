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
from kokoro_npu.aihub.settings import Settings, inference_options
from kokoro_npu.build.labels import FP32, QUANTIZED, TORCH
from kokoro_npu.compile.aihub import BACKEND, TABLE
from kokoro_npu.compile.binary import read_binary
from kokoro_npu.corpus.reference_set import ReferenceUtterance
from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.evaluate import parity
from kokoro_npu.files import atomic, sha256
from kokoro_npu.geometry import FRAMES_PER_SECOND, Array, Bucket
from kokoro_npu.graphs.cost import count
from kokoro_npu.host.steps import pad_to_bucket

if TYPE_CHECKING:
    import qai_hub

_MEASURED = ("rtf_p50", "latency_ms_p50", "latency_ms_p95", "load_ms", "runs", "peak_rss_bytes")
_COUNTED = ("weight_bytes", "activation_bytes")
_ELSEWHERE = (TORCH, FP32)  # variants that do not run on a device
_UNITS = ("NPU", "GPU", "CPU")
_LAYER_COLUMNS = ("name", "type", "compute_unit", "execution_time_us", "execution_cycles")


@dataclass(frozen=True)
class _Inputs:
    """What is sent to one device: arrays by input name in the binary's order, one an utterance."""

    entries: dict[str, list[Array]]
    output: str
    digest: str


@dataclass(frozen=True)
class _Answer:
    """What came back: audio [1, 600 T] for each utterance, and the client's profile."""

    audio: list[Array]
    profile: dict[str, Any]


def profile_on_devices(
    recorded: Sequence[ReferenceUtterance],
    bucket: Bucket,
    decoders: dict[str, Path],
    compiled_dir: Path,
    settings: Settings,
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
        The keys of ``profile_bucket``, ``quant_…`` being the first device's (the decoder alone, without the CPU half)
        and those of the float decoder and of PyTorch None, for they do not run there; and ``device`` with
        ``device_…``: memory range in bytes, layers by compute unit, and the figures of ``parity.summarize`` (those of
        variants that did not run left out).

    Raises:
        KokoroNpuError: no binaries of this backend, or no device gave a result. The failures of single devices stand
            in the table.
    """
    rows = _compiled(compiled_dir)
    chosen = sorted(recorded, key=lambda item: -item.frames)[: settings.utterances]
    with connect(settings) as service:
        binaries = {str(row["device"]): compiled_dir / str(row["binary"]) for row in rows if row["compiled"]}
        found = devices.resolve(service, list(binaries))
        results = _run_all(service, found, binaries, chosen, bucket, out_dir)
    table = []
    for row in rows:
        result = results.get(str(row["device"]), {"reason": row["reason"]})
        table.append({"device": row["device"], "backend": BACKEND, "reason": "", "qairt": row["qairt"], **result})
    with atomic(out_dir / TABLE) as tmp:
        pd.DataFrame(table).to_csv(tmp, index=False)
    if all(row["reason"] for row in table):
        raise KokoroNpuError("; ".join(dict.fromkeys(str(row["reason"]) for row in table)))
    for row in table:
        print(f"{bucket.frames} frames on {row['device']}: {row['reason'] or _line(row)}")
    columns = {key: None for row in table for key in row}  # a failed device has fewer
    return _report(columns | table[0], bucket, decoders, chosen[0].frames)


def _compiled(compiled_dir: Path) -> list[dict[str, Any]]:
    path = compiled_dir / TABLE
    if not path.is_file():
        raise KokoroNpuError(f"{path} does not exist: run the stage qai-compile with compile.backend=aihub first")
    rows = pd.read_csv(path, keep_default_na=False).to_dict("records")
    if not any(row["compiled"] for row in rows):
        raise KokoroNpuError(f"{path}: no device has a binary")
    return [{str(key): value for key, value in row.items()} for row in rows]


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['latency_ms_p50']} ms, RTF {row['rtf_p50']}, {row['ops_npu']} layers on the NPU, "
        f"{row['ops_cpu']} on the CPU, {row['quantized_snr_db_min']:.1f} dB at worst"
    )


def _run_all(
    service: Service,
    found: Sequence[devices.Device],
    binaries: Mapping[str, Path],
    chosen: Sequence[ReferenceUtterance],
    bucket: Bucket,
    out_dir: Path,
) -> dict[str, dict[str, Any]]:
    journal = Journal(service.settings.journal, service.redactor)
    with ExitStack() as locks:
        requests, inputs = [], []
        for device in found:
            path = binaries[device.name]
            inputs.append(_inputs(path, chosen, bucket))
            requests.append(_request(service, journal, path, inputs[-1], bucket, device))
            locks.enter_context(journal.locked(requests[-1].entry))
        outcomes = jobs.run_jobs(service, journal, requests)
        results: dict[str, dict[str, Any]] = {}
        for device, request, sent, outcome in zip(found, requests, inputs, outcomes, strict=True):
            row: dict[str, Any] = {"job": journal.read(request.entry).get("url", "")}
            row["reason"] = outcome.error
            if outcome.job_id:
                try:
                    answer = _fetch(service, journal, request, outcome.job_id, sent, bucket)
                    row |= _figures(answer, chosen, bucket, out_dir / device.slug)
                except KokoroNpuError as error:
                    row["reason"] = str(error)
            results[device.name] = row
    return results


def _inputs(binary: Path, chosen: Sequence[ReferenceUtterance], bucket: Bucket) -> _Inputs:
    """The utterances as the binary's graph takes them; the service matches inputs by order as well as by name."""
    if not binary.is_file():
        raise KokoroNpuError(f"{binary} does not exist: run the stage qai-compile again")
    graph = read_binary(binary).graphs[0]
    padded = [pad_to_bucket(item.features, bucket) for item in chosen]
    entries = {name: [values[name] for values in padded] for name in graph.inputs}
    digest = content_key([[n, [hashlib.sha256(v.tobytes()).hexdigest() for v in vs]] for n, vs in entries.items()])
    return _Inputs(entries, next(iter(graph.outputs)), digest)


def _request(
    service: Service, journal: Journal, binary: Path, inputs: _Inputs, bucket: Bucket, device: devices.Device
) -> jobs.Request:
    import qai_hub

    options, digest = inference_options(service.settings), sha256(binary)
    size = sum(value.nbytes for values in inputs.entries.values() for value in values)

    def upload() -> tuple[str, str]:
        return _model(service, journal, binary, digest), transfer.uploaded_id(
            service,
            journal,
            f"dataset-{inputs.digest[:32]}",
            f"inputs of {bucket.frames} frames",
            lambda client, known: not client.get_dataset(known).is_expired(),
            lambda client: str(client.upload_dataset(inputs.entries, name=f"kokoro-npu {inputs.digest}").dataset_id),
            size,
        )

    def submit(client: qai_hub.Client, uploaded: tuple[str, str]) -> str:
        model, dataset = uploaded
        job = client.submit_inference_job(
            client.get_model(model),
            qai_hub.Device(device.name),
            client.get_dataset(dataset),
            name=request.name,
            options=options,
            retry=False,
            profile=True,
        )
        assert isinstance(job, qai_hub.InferenceJob)  # one device
        return job.job_id

    key = content_key(jobs.INFERENCE, digest, inputs.digest, options, device.name)
    request = jobs.Request(jobs.INFERENCE, key, f"run {bucket.frames} frames on {device.name}", upload, submit)
    return request


def _model(service: Service, journal: Journal, binary: Path, digest: str) -> str:
    """Id of the binary at the service: of the compile job that made it, else of an upload."""

    def usable(client: "qai_hub.Client", known: str) -> bool:
        return bool(client.get_model(known))

    for entry in journal.entries(f"{jobs.COMPILE}-"):
        if entry.get("binary_sha256") == digest:
            journal.update(f"binary-{digest[:32]}", id=entry["target_model_id"])
    return transfer.uploaded_id(
        service,
        journal,
        f"binary-{digest[:32]}",
        f"binary {binary.name}",
        usable,
        lambda client: str(client.upload_model(str(binary), name=f"kokoro-npu {digest}").model_id),
        binary.stat().st_size,
    )


def _fetch(
    service: Service, journal: Journal, request: jobs.Request, job_id: str, sent: _Inputs, bucket: Bucket
) -> _Answer:
    """Outputs and profile of a job that succeeded. The outputs are kept beside the journal and not fetched again."""
    import qai_hub

    count_sent = len(next(iter(sent.entries.values())))
    what = f"outputs of {request.label}"

    def read(path: Path) -> list[Array]:
        return _audio(path, sent.output, count_sent, bucket)

    def fetch(client: qai_hub.Client, place: str) -> str | None:
        job = client.get_job(job_id)
        assert isinstance(job, qai_hub.InferenceJob)
        return job.download_output_data(place)

    def profile(client: qai_hub.Client) -> dict[str, Any]:
        job = client.get_job(job_id)
        assert isinstance(job, qai_hub.InferenceJob)
        found = job.download_profile()
        assert isinstance(found, dict)
        if not found.get("execution_summary", {}).get("estimated_inference_time") or not found["execution_detail"]:
            raise ValueError("the profile is empty")
        return found

    place = journal.directory / f"outputs-{request.key[:32]}-{job_id}.h5"
    audio = transfer.kept(read, place) or transfer.download(service, what, fetch, read, place)
    return _Answer(audio, service.call(f"profile of {request.label}", profile))


def _audio(path: Path, output: str, utterances: int, bucket: Bucket) -> list[Array]:
    """Audio of each utterance from a dataset file.

    Raises:
        KokoroNpuError: no such dataset, or not ``utterances`` times finite audio of the bucket's length.
    """
    import h5py
    from qai_hub.util.dataset_entries_converters import h5_to_dataset_entries

    try:
        with h5py.File(path, "r") as file:
            entries = h5_to_dataset_entries(file)
    except (OSError, KeyError, ValueError, RuntimeError, AssertionError, TypeError) as error:
        raise KokoroNpuError(f"{path.name} is no dataset ({type(error).__name__})") from None
    values = entries.get(output) if output in entries or len(entries) != 1 else next(iter(entries.values()))
    if values is None:
        raise KokoroNpuError(f"the device returned {', '.join(entries) or 'nothing'} instead of {output}")
    samples = bucket.samples
    audio = [np.asarray(value, dtype=np.float32) for value in values]
    if len(audio) != utterances or any(value.size != samples or not np.isfinite(value).all() for value in audio):
        raise KokoroNpuError(
            f"the device returned {output} of shapes {[value.shape for value in audio]} (or not finite) instead of "
            f"{utterances} times {samples} samples"
        )
    return [value.reshape(1, samples) for value in audio]


def _figures(answer: _Answer, chosen: Sequence[ReferenceUtterance], bucket: Bucket, out_dir: Path) -> dict[str, Any]:
    """One device's columns of the table; writes its layers and its parity."""
    replay = iter(answer.audio)
    table = parity.evaluate(chosen, bucket, iter([(QUANTIZED, lambda _: next(replay))]))
    layers = pd.DataFrame(
        [
            {
                "name": layer["name"],
                "type": layer["type"],
                "compute_unit": layer["compute_unit"],
                "execution_time_us": layer.get("execution_time"),
                "execution_cycles": layer.get("execution_cycles"),
            }
            for layer in answer.profile["execution_detail"]
        ],
        columns=list(_LAYER_COLUMNS),
    )
    with atomic(out_dir / "layers.csv") as tmp:
        layers.to_csv(tmp, index=False)
    with atomic(out_dir / "parity.csv") as tmp:
        table.to_csv(tmp, index=False, float_format="%.6g")
    summary = answer.profile["execution_summary"]
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
        **{key: value for key, value in parity.summarize(table).items() if not key.startswith(_ELSEWHERE)},
    }


def _milliseconds(microseconds: Any) -> float | None:
    return round(microseconds / 1000, 1) if microseconds else None


def _report(row: dict[str, Any], bucket: Bucket, decoders: dict[str, Path], frames: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "backend": BACKEND,
        "frames": bucket.frames,
        "utterance_frames": frames,
        "threads": None,
    }
    for prefix, decoder in decoders.items():
        cost = count(decoder)
        report |= {f"{prefix}{key}": row.get(key) if prefix == "quantized_" else None for key in _MEASURED}
        report |= {f"{prefix}{key}": getattr(cost, key) for key in _COUNTED} | {"gmacs": cost.gmacs}
    report |= {f"torch_{key}": None for key in _MEASURED}
    own = {key: row.get(key) for key in row if key not in (*_MEASURED, "backend", "device")}
    return report | {"device": row["device"]} | {f"device_{key}": value for key, value in own.items()}
