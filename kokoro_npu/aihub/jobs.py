"""Jobs that are submitted once: found again by the journal or by their name, waited for together."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from kokoro_npu.aihub.journal import Journal
from kokoro_npu.aihub.service import LimitedError, RefusedError, Service, UnansweredError
from kokoro_npu.errors import KokoroNpuError

if TYPE_CHECKING:
    import qai_hub

COMPILE, INFERENCE = "compile", "inference"
_PAGE = 50
_PAGES = 20
_LINE_SECONDS = 60.0
_LONGEST_REASON = 500

# States of a journal entry. SUBMITTING: a POST may be under way or its reply lost; only this one needs a search that
# waits, for the service may take a moment to list a job.
SUBMITTING, SUBMITTED, DONE, FAILED = "submitting", "submitted", "done", "failed"


@dataclass(frozen=True)
class Request:
    """A job that is wanted.

    Attributes:
        kind: ``compile`` or ``inference``.
        key: SHA-256 of what it is made of: model, options, device, inputs.
        label: for people, e.g. ``compile 120 frames on Samsung Galaxy S24``.
        upload: brings models and data to the service and gives what ``submit`` needs; may be called twice.
        submit: submits the job and gives its id; called at most once for each job that comes to be.
    """

    kind: str
    key: str
    label: str
    upload: Callable[[], Any]
    submit: Callable[["qai_hub.Client", Any], str]

    @property
    def name(self) -> str:
        """Name of the job at the service, by which it is found again."""
        return f"kokoro-npu {self.kind} {self.key}"

    @property
    def entry(self) -> str:
        """Name of its journal entry."""
        return f"{self.kind}-{self.key[:32]}"


@dataclass(frozen=True)
class Outcome:
    """What came of a request: a job that succeeded, or one line why not."""

    job_id: str = ""
    error: str = ""


def run_jobs(service: Service, journal: Journal, requests: Sequence[Request]) -> list[Outcome]:
    """Bring every request to its end, side by side. A failure of one is told in its outcome and stops no other.

    The caller holds the journal's locks of the requests.
    """
    outcomes: dict[Request, Outcome] = {}
    open_jobs: dict[Request, str] = {}
    for request in requests:
        try:
            open_jobs[request] = _job_id(service, journal, request)
        except KokoroNpuError as error:
            outcomes[request] = Outcome(error=str(error))
    if open_jobs:
        outcomes |= _wait(service, journal, open_jobs)
    return [outcomes[request] for request in requests]


def _job_id(service: Service, journal: Journal, request: Request) -> str:
    """Id of the request's job: the journal's, one that is found by name, or a new one."""
    entry = journal.read(request.entry)
    failed, retry = entry.get("state") == FAILED, service.settings.retry_failed
    if failed and not retry:
        raise KokoroNpuError(_failure(service, request, entry.get("job_id", ""), entry.get("reason", "")))
    if entry.get("job_id") and not failed:
        return str(entry["job_id"])
    journal.update(
        request.entry, key=request.key, job_name=request.name, label=request.label, job_id=None, reason=None,
        finished_at=None, state=None if failed else entry.get("state"),
    )  # fmt: skip
    given_up = {job_id for failed, job_id in _search(service, request) if failed} if retry else set()
    since = entry.get("submitting_at", 0.0) if entry.get("state") == SUBMITTING else None
    found = _find(service, request, given_up, since) or _submit(service, journal, request, given_up)
    journal.update(request.entry, state=SUBMITTED, job_id=found, url=service.job_url(found))
    return found


def _submit(service: Service, journal: Journal, request: Request, given_up: set[str]) -> str:
    """Submit, and after every answer that leaves it open look for the job before submitting again."""
    uploaded = request.upload()
    what = f"submit {request.label}"
    pauses = service.pauses(what)
    while True:
        now = time.time()
        journal.update(request.entry, state=SUBMITTING, submitting_at=now)
        failure: KokoroNpuError
        found = None
        try:
            return service.once(what, lambda client: request.submit(client, uploaded))
        except LimitedError as error:  # nothing was done
            failure = error
        except (RefusedError, UnansweredError) as error:
            failure = error
            found = _find(service, request, given_up, None if isinstance(error, RefusedError) else now)
        if found is not None:
            return found
        journal.update(request.entry, state=None)
        if isinstance(failure, RefusedError):
            raise failure
        pauses(failure)


def _find(service: Service, request: Request, given_up: set[str], since: float | None) -> str | None:
    """The newest job of the request's name that was not given up; one that is not failed goes before a failed one.

    Args:
        service: the service.
        request: the request.
        given_up: ids of failed jobs that are to be left behind.
        since: when a submission without known end began: the search goes on until it must have shown.
    """
    while True:
        usable = [job for job in _search(service, request) if job[1] not in given_up]
        if usable:
            return min(usable, key=lambda job: job[0])[1]
        if since is None or time.time() - since >= service.settings.settle_seconds:
            return None
        time.sleep(min(service.settings.backoff_seconds, service.settings.settle_seconds))


def _search(service: Service, request: Request) -> list[tuple[bool, str]]:
    """(failed, id) of the jobs of the request's name among the newest ``_PAGE * _PAGES`` of its kind."""
    import qai_hub

    kind = qai_hub.JobType.COMPILE if request.kind == COMPILE else qai_hub.JobType.INFERENCE

    def search(client: qai_hub.Client) -> list[tuple[bool, str]]:
        found: list[tuple[bool, str]] = []
        for page in range(_PAGES):
            summaries = client.get_job_summaries(offset=page * _PAGE, limit=_PAGE, type=kind)
            found += [(s.status.failure, s.job_id) for s in summaries if s.name == request.name]
            if len(summaries) < _PAGE:
                break
        return found

    return service.call(f"search for {request.label}", search)


def _wait(service: Service, journal: Journal, open_jobs: dict[Request, str]) -> dict[Request, Outcome]:
    outcomes: dict[Request, Outcome] = {}
    begun = time.monotonic()
    states = dict.fromkeys(open_jobs, "")
    bar = tqdm(desc="AI Hub", bar_format="{desc}: {elapsed}{postfix}", disable=None)
    next_line = 0.0
    while True:
        changed = False
        for request, job_id in open_jobs.items():
            if request in outcomes:
                continue
            what = f"state of {request.label}"
            try:
                status = service.call(what, lambda client, i=job_id: client.get_job(i).get_status())  # type: ignore[misc]
            except RefusedError as error:
                where = journal.path(request.entry)
                outcomes[request] = Outcome(error=f"{error}; job {job_id} stands in {where}: delete it to submit anew")
                continue
            except KokoroNpuError as error:
                outcomes[request] = Outcome(error=str(error))
                continue
            changed |= states[request] != status.code
            states[request] = status.code
            if status.success:
                finished = journal.read(request.entry).get("finished_at", time.time())  # when it was first seen to end
                journal.update(request.entry, state=DONE, finished_at=finished)
                outcomes[request] = Outcome(job_id)
            elif status.failure:
                reason = status.message or "no reason given"
                journal.update(request.entry, state=FAILED, reason=reason, finished_at=time.time())
                outcomes[request] = Outcome(error=_failure(service, request, job_id, reason))
        elapsed = time.monotonic() - begun
        line = "; ".join(f"{request.label}: {states[request]}" for request in open_jobs)
        bar.set_postfix_str(line)
        if bar.disable and (changed or elapsed >= next_line):
            next_line = elapsed + _LINE_SECONDS
            print(f"AI Hub: {elapsed:.0f} s: {service.redactor.text(line)}", file=sys.stderr, flush=True)
        waiting = [request for request in open_jobs if request not in outcomes]
        if waiting and elapsed > service.settings.job_seconds:
            for request in waiting:
                url = service.job_url(open_jobs[request])
                outcomes[request] = Outcome(
                    error=f"{request.label}: still {states[request]} after {elapsed:.0f} s ({url}); "
                    "run again to go on waiting"
                )
            waiting = []
        if not waiting:
            bar.close()
            return outcomes
        time.sleep(service.settings.poll_seconds)


def _failure(service: Service, request: Request, job_id: str, reason: str) -> str:
    reason = reason[:_LONGEST_REASON].rstrip(".")
    return service.redactor.text(
        f"{request.label}: AI Hub failed the job: {reason}. See {service.job_url(job_id)}; "
        "it is not submitted again unless aihub.retry_failed=true"
    )
