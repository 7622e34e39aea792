"""A loopback server with AI Hub's protocol, for the real ``qai_hub`` client. It refuses what the real one refuses."""

import hashlib
import io
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h5py
import numpy as np
from qai_hub import public_api_pb2 as pb
from qai_hub.util.dataset_entries_converters import dataset_entries_to_h5, h5_to_dataset_entries

TOKEN = "s3cret%40Token/+abcdefghijklmnop0123456789"
S3_SECRET, S3_SESSION = "s3-secret-key-0123456789", "s3-session-token-0123456789"
PROTOBUF = "application/x-protobuf"
Arrays = dict[str, list[np.ndarray]]
PHONE = ("Samsung Galaxy S24", "14", ["hexagon:v75", "soc-model:57", "framework:qnn", "framework:onnx"])
OLDER = ("Samsung Galaxy S23", "13", ["hexagon:v73", "soc-model:43", "framework:qnn", "framework:onnx"])
TABLET = ("Samsung Galaxy Tab S10", "14", ["hexagon:v75", "soc-model:57", "framework:qnn"])


@dataclass
class Asset:
    """A model or a dataset."""

    name: str
    kind: Any = 0
    data: bytes = b""
    complete: bool = False
    parts: dict[int, bytes] = field(default_factory=dict)
    age_days: int = 0


@dataclass
class FakeJob:
    """A job; ``polls`` counts how often its state was asked."""

    pb: pb.Job
    name: str
    polls: int = 0
    failure: str = ""
    target: str = ""
    hidden_for: int = 0


class RefusalError(Exception):
    """Ends a request with a status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Fault:
    """What goes wrong with one request.

    ``status`` answers with it; ``drop`` closes the connection unprocessed; ``lose`` processes and closes; ``garbage``
    and ``html`` answer nonsense instead; ``empty`` answers nothing well-formed; ``cut`` sends half of the answer;
    ``hang`` never answers; ``slow`` answers late; ``late`` processes when nobody listens any more.
    """

    kind: str
    status: int = 0
    seconds: float = 0.0


@dataclass
class FakeHub:
    """What the server holds, does, and was asked."""

    compiler: Callable[[bytes, str, str], bytes | str]
    device: Callable[[Arrays, str], Arrays | str] = lambda inputs, _: inputs
    devices: list[tuple[str, str, list[str]]] = field(default_factory=lambda: [PHONE, OLDER, TABLET])
    part_size: int = 1 << 16
    polls: int = 1
    refuse_model: str = ""
    hide_new_jobs_for: int = 0
    no_etag: bool = False
    s3: bool = False
    download_name: str = "job_target.bin"
    fault: Callable[[int, str, str], Fault | None] = lambda *_: None
    processed: Callable[[int, str, str], None] = lambda *_: None
    url: str = ""
    models: dict[str, Asset] = field(default_factory=dict)
    datasets: dict[str, Asset] = field(default_factory=dict)
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def posts(self, path: str) -> int:
        """How often something was posted to a path."""
        return sum(request == ("POST", path) for request in self.requests)

    def names(self) -> list[str]:
        """Names of all jobs there are."""
        return [job.name for job in self.jobs.values()]

    # --- what the endpoints do; each under the lock ---

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self._ids):06d}"

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Any:
        for pattern, verb, handler in self._routes():
            if verb == method and (match := re.fullmatch(pattern, path)):
                return handler(*match.groups(), query=query, body=body)
        raise RefusalError(404, f"no such endpoint: {path}")

    def _routes(self) -> list[tuple[str, str, Callable[..., Any]]]:
        return [
            ("devices", "GET", self.list_devices),
            ("models", "POST", self.create_model),
            (r"models/(\w+)", "GET", self.get_model),
            (r"models/(\w+)/multipart_upload", "GET", self.upload_urls),
            (r"models/(\w+)/multipart_upload", "POST", self.complete_upload),
            (r"models/(\w+)/download", "GET", self.model_url),
            ("datasets", "POST", self.create_dataset),
            (r"datasets/(\w+)/upload_url", "GET", self.dataset_upload_url),
            (r"models/(\w+)/upload_complete", "POST", self.complete_s3_upload),
            (r"datasets/(\w+)/upload_complete", "POST", self.complete_s3_upload),
            (r"datasets/(\w+)", "PATCH", self.complete_dataset),
            (r"datasets/(\w+)", "GET", self.get_dataset),
            (r"datasets/(\w+)/download_data", "GET", self.dataset_url),
            ("jobs", "POST", self.create_job),
            (r"jobs/(\w+)", "GET", self.get_job),
            (r"jobs/(\w+)/result", "GET", self.job_result),
            ("job_summaries", "GET", self.summaries),
        ]

    def list_devices(self, query: dict[str, list[str]], **_: Any) -> Any:
        name = query.get("name", [""])[0]
        found = [d for d in self.devices if name in ("", d[0])]
        if query.get("select", ["False"])[0] == "True":
            found = found[-1:]
        return pb.DeviceList(devices=[pb.Device(name=n, os=o, attributes=a) for n, o, a in found])

    def credentials(self, asset_id: str, filename: str = "") -> Any:
        """Short-lived S3 credentials for one object, the other way to transfer; the bucket is this server too."""
        return pb.S3Credentials(
            access_key_id="AKIDEXAMPLE", secret_access_key=S3_SECRET, session_token=S3_SESSION, bucket="storage",
            key=asset_id, region="us-west-2", filename=filename,
        )  # fmt: skip

    def complete_s3_upload(self, asset_id: str, **_: Any) -> Any:
        asset = (self.models | self.datasets)[asset_id]
        asset.data, asset.complete = asset.parts[0], True
        return pb.CreateUpdateResponse(id=asset_id)

    def create_model(self, body: bytes, **_: Any) -> Any:
        model = pb.Model.FromString(body)
        if self.refuse_model:
            raise RefusalError(400, self.refuse_model)
        model_id = self.new("m")
        self.models[model_id] = Asset(model.name, model.model_type)
        return pb.CreateUpdateResponse(id=model_id)

    def _model(self, model_id: str) -> Asset:
        if model_id not in self.models:
            raise RefusalError(404, "no such model")
        return self.models[model_id]

    def get_model(self, model_id: str, **_: Any) -> Any:
        model = self._model(model_id)
        return pb.Model(model_id=model_id, name=model.name, model_type=model.kind, file_upload_complete=model.complete)

    def upload_urls(self, model_id: str, query: dict[str, list[str]], **_: Any) -> Any:
        self._model(model_id)
        if self.s3:
            return pb.FileUploadResponse(credentials=self.credentials(model_id))
        count = max(1, -(-int(query["file_size"][0]) // self.part_size))
        urls = [f"{self.url}/storage/{model_id}/{part}?X-Amz-Signature=short" for part in range(count)]
        multipart = pb.FileMultipartUploadURL(urls=urls, upload_id=f"u{model_id}", max_part_size=self.part_size)
        return pb.FileUploadResponse(multipart_url=multipart)

    def complete_upload(self, model_id: str, body: bytes, **_: Any) -> Any:
        model, done = self._model(model_id), pb.FileMultipartUploadComplete.FromString(body)
        have = [hashlib.md5(model.parts[part]).hexdigest() for part in sorted(model.parts)]
        if list(done.etags) != have or done.upload_id != f"u{model_id}":
            raise RefusalError(400, "parts are missing, or their ETags differ")
        model.data, model.complete = b"".join(model.parts[part] for part in sorted(model.parts)), True
        return pb.CreateUpdateResponse(id=model_id)

    def model_url(self, model_id: str, **_: Any) -> Any:
        if not self._model(model_id).complete:
            raise RefusalError(404, "the model holds nothing")
        if self.s3:
            return pb.FileDownloadResponse(credentials=self.credentials(model_id, self.download_name))
        url = f"{self.url}/storage/{model_id}?X-Amz-Signature=short"
        return pb.FileDownloadResponse(url=pb.FileDownloadURL(url=url, filename=self.download_name))

    def create_dataset(self, body: bytes, **_: Any) -> Any:
        dataset_id = self.new("d")
        self.datasets[dataset_id] = Asset(pb.Dataset.FromString(body).name)
        return pb.CreateUpdateResponse(id=dataset_id)

    def _dataset(self, dataset_id: str) -> Asset:
        if dataset_id not in self.datasets:
            raise RefusalError(404, "no such dataset")
        return self.datasets[dataset_id]

    def dataset_upload_url(self, dataset_id: str, **_: Any) -> Any:
        self._dataset(dataset_id)
        if self.s3:
            return pb.FileUploadResponse(credentials=self.credentials(dataset_id))
        url = f"{self.url}/storage/{dataset_id}"
        return pb.FileUploadResponse(url=pb.FileUploadURL(url=url, file_field_name="file", fields={"key": dataset_id}))

    def complete_dataset(self, dataset_id: str, **_: Any) -> Any:
        if not self._dataset(dataset_id).data:
            raise RefusalError(400, "nothing was uploaded")
        self.datasets[dataset_id].complete = True
        return pb.CreateUpdateResponse(id=dataset_id)

    def get_dataset(self, dataset_id: str, **_: Any) -> Any:
        dataset = self._dataset(dataset_id)
        found = pb.Dataset(dataset_id=dataset_id, name=dataset.name, file_upload_complete=dataset.complete)
        found.expiration_time.seconds = int(time.time()) + (30 - dataset.age_days) * 86400
        return found

    def dataset_url(self, dataset_id: str, **_: Any) -> Any:
        self._dataset(dataset_id)
        if self.s3:
            return pb.FileDownloadResponse(credentials=self.credentials(dataset_id, f"{dataset_id}.h5"))
        url = f"{self.url}/storage/{dataset_id}"
        return pb.FileDownloadResponse(url=pb.FileDownloadURL(url=url, filename=f"{dataset_id}.h5"))

    def create_job(self, body: bytes, **_: Any) -> Any:
        job = pb.Job.FromString(body)
        kind = str(job.WhichOneof("job"))
        inner = getattr(job, kind)
        if inner.model.model_id not in self.models or not self.models[inner.model.model_id].complete:
            raise RefusalError(400, "the job's model does not exist or was not uploaded")
        job_id = self.new("j")
        if kind == "compile_job":
            inner.compile_job_id = job_id
            target = self.new("m")
            self.models[target] = Asset(f"{inner.name}_target", pb.MODEL_TYPE_QNN_CONTEXT_BINARY)
            inner.target_model.CopyFrom(
                pb.Model(model_id=target, model_type=pb.MODEL_TYPE_QNN_CONTEXT_BINARY, producer_id=job_id)
            )
            inner.device.CopyFrom(inner.devices.devices[0])
        else:
            if not self.datasets.get(inner.dataset.dataset_id, Asset("")).complete:
                raise RefusalError(400, "the job's dataset does not exist or was not uploaded")
            if self.models[inner.model.model_id].kind != pb.MODEL_TYPE_QNN_CONTEXT_BINARY:
                raise RefusalError(400, "the model was not compiled")
            inner.inference_job_id = job_id
            target = ""
        inner.job_state = pb.JOB_STATE_CREATED
        inner.creation_time.seconds = int(time.time())
        self.jobs[job_id] = FakeJob(job, inner.name, target=target, hidden_for=self.hide_new_jobs_for)
        return pb.CreateUpdateResponse(id=job_id)

    def _advance(self, job: FakeJob) -> None:
        inner = getattr(job.pb, str(job.pb.WhichOneof("job")))
        compiling = job.pb.WhichOneof("job") == "compile_job"
        job.polls += 1
        if inner.job_state in (pb.JOB_STATE_DONE, pb.JOB_STATE_FAILED):
            return
        if job.polls <= self.polls:
            inner.job_state = pb.JOB_STATE_OPTIMIZING_MODEL if compiling else pb.JOB_STATE_MEASURING_PERFORMANCE
            return
        if compiling:
            result: Any = self.compiler(self.models[inner.model.model_id].data, inner.options, inner.device.name)
        else:
            with h5py.File(io.BytesIO(self.datasets[inner.dataset.dataset_id].data), "r") as file:
                result = self.device(dict(h5_to_dataset_entries(file)), inner.device.name)
        if isinstance(result, str):
            inner.job_state, inner.failure_reason = pb.JOB_STATE_FAILED, result
        elif compiling:
            self.models[job.target].data, self.models[job.target].complete = result, True
            inner.job_state = pb.JOB_STATE_DONE
        else:
            buffer = io.BytesIO()
            with h5py.File(buffer, "w") as file:
                dataset_entries_to_h5(result, file)
            job.target = self.new("d")
            self.datasets[job.target] = Asset("outputs", data=buffer.getvalue(), complete=True)
            inner.job_state = pb.JOB_STATE_DONE

    def get_job(self, job_id: str, **_: Any) -> Any:
        if job_id not in self.jobs:
            raise RefusalError(404, "no such job")
        self._advance(self.jobs[job_id])
        return self.jobs[job_id].pb

    def job_result(self, job_id: str, **_: Any) -> Any:
        if job_id not in self.jobs:
            raise RefusalError(404, "no such job")
        job = self.jobs[job_id]
        if job.pb.inference_job.job_state != pb.JOB_STATE_DONE:
            raise RefusalError(404, "no result yet")
        detail = pb.ProfileDetail(major_version=1, minor_version=2, execution_time=2000, warm_load_time=5000)
        detail.cold_load_time, detail.after_execution_peak_memory = 90000, 50_000_000
        detail.all_execution_times.extend([2000, 2100, 2300, 2200])
        detail.execution_memory.peak.lower, detail.execution_memory.peak.upper = 40_000_000, 50_000_000
        for name, unit in (("conv1", "NPU"), ("norm1", "NPU"), ("cast", "CPU")):
            layer = detail.layer_details.add(name=name, layer_type_name="Op", execution_time=10, execution_cycles=99)
            layer.compute_unit = pb.ComputeUnit.Value(f"COMPUTE_UNIT_{unit}")
        result = pb.InferenceJobResult(inference_job_id=job_id, output_dataset_id=job.target, detail=detail)
        return pb.JobResult(inference_job_result=result)

    def summaries(self, query: dict[str, list[str]], **_: Any) -> Any:
        offset, limit = int(query.get("offset", ["0"])[0]), int(query["limit"][0])
        found = []
        for job_id, job in reversed(self.jobs.items()):
            kind = job.pb.WhichOneof("job")
            if kind != f"{query['type'][0]}_job":
                continue
            if job.hidden_for:
                job.hidden_for -= 1
                continue
            inner = getattr(job.pb, kind)
            summary = {"job_id": job_id, "name": job.name, "job_state": inner.job_state}
            found.append(pb.JobSummary(**{f"{kind}_summary": summary}))  # type: ignore[arg-type]  # a dict will do
        return pb.JobSummaryList(job_summaries=found[offset : offset + limit], total_query_count=len(found))


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = parts.path.removeprefix("/api/v1/").strip("/")
            with hub.lock:
                hub.requests.append((self.command, path))
                number = len(hub.requests)
                fault = hub.fault(number, self.command, path)
            kind = fault.kind if fault else ""
            seconds = fault.seconds if fault else 0.0
            if kind in ("slow", "late"):
                time.sleep(seconds)
            if fault and kind == "status":
                # The service may well quote what it was sent.
                self._send(fault.status, f"refused {self.headers.get('Authorization')}".encode(), "text/plain")
                return
            if kind == "drop":
                self._close()
                return
            status, answer, content_type = 200, b"", PROTOBUF
            headers: dict[str, str] = {}
            try:
                if parts.path.startswith("/storage/"):
                    answer, content_type, headers = self._storage(path.removeprefix("storage/"), body)
                else:
                    if self.headers.get("Authorization") != f"token {TOKEN}":
                        raise RefusalError(401, "wrong token")
                    if not parts.path.startswith("/api/v1/") or not parts.path.endswith("/"):
                        raise RefusalError(404, "no such address")
                    with hub.lock:
                        answer = hub.answer(self.command, path, parse_qs(parts.query), body).SerializeToString()
            except RefusalError as refusal:
                status, answer, content_type = refusal.status, str(refusal).encode(), "text/plain"
            hub.processed(number, self.command, path)
            if kind == "hang":
                time.sleep(seconds)
            if kind in ("lose", "hang"):
                self._close()
                return
            if kind == "garbage":
                answer = hashlib.sha512(answer + bytes([number % 256])).digest()
            if kind == "html":
                answer, content_type = b"<html>it works</html>", "text/html"
            if kind == "empty":
                answer = b""
            self._send(status, answer, content_type, headers, cut=kind == "cut")

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _serve  # noqa: N815  # names of the base class

        def _storage(self, path: str, body: bytes) -> tuple[bytes, str, dict[str, str]]:
            """Storage knows no token, only addresses."""
            asset_id, _, part = path.partition("/")
            assets = hub.models | hub.datasets
            if TOKEN in self.headers.get("Authorization", ""):
                raise RefusalError(403, "the token does not belong here")
            if asset_id not in assets:
                raise RefusalError(
                    403, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
                )
            asset = assets[asset_id]
            if self.command == "PUT":
                asset.parts[int(part or 0)] = body
                return b"", "text/plain", {} if hub.no_etag else {"ETag": hashlib.md5(body).hexdigest()}
            if self.command == "POST":
                head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
                form = BytesParser(policy=HTTP).parsebytes(head + body)
                assert isinstance(form, EmailMessage)
                fields = {part.get_param("name", header="content-disposition"): part for part in form.iter_parts()}
                asset.data = fields["file"].get_payload(decode=True)  # type: ignore[assignment]  # bytes, not a list
                return b"", "text/plain", {}
            return asset.data, "application/octet-stream", {}

        def _send(
            self, status: int, body: bytes, content_type: str, headers: dict[str, str] | None = None, cut: bool = False
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self._close()

        def _close(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: object) -> None:
            """Keep the test output quiet."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that went away, or was killed, is what these tests are about."""


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """Run the server on a free port and set ``hub.url``."""
    server = _Server(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
