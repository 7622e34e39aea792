"""Calls of the ``qai_hub`` client: each with a limit, retried by one rule, failing in one line without the token.

The client itself retries in ways that do not fit together: it repeats the POST of a job whose reply was lost, waits
46 s on a dead server, and gives up after 14 s of 429. Its count of retries is set to zero while a `Service` is open,
and the rule here takes over. Only transfers to and from storage keep the client's own few retries inside a call.
"""

import contextlib
import io
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from kokoro_npu.aihub.credentials import Credentials, read_credentials
from kokoro_npu.aihub.redaction import Redactor, redacted_logging
from kokoro_npu.aihub.settings import ServiceSettings
from kokoro_npu.errors import KokoroNpuError

if TYPE_CHECKING:
    import qai_hub

T = TypeVar("T")
Call = Callable[["qai_hub.Client"], T]
"""Work with the client. It fetches what it needs by id: a client that was abandoned answers no more."""

_LONGEST_PAUSE = 60.0
_LONGEST_MESSAGE = 400
_BOX = re.compile(r"[┌┐└┘─|\s]+")
_REVOKED = "http://127.0.0.1:9"  # discard: nothing listens there
_NO_REASON = re.compile(r"Failed to [^:]*: *")


class RefusedError(KokoroNpuError):
    """The service understood and said no: the same again would get the same answer."""


class UnansweredError(KokoroNpuError):
    """No usable answer; whether the service did what was asked is not known."""


class LimitedError(UnansweredError):
    """429: nothing was done."""


class Service:
    """The client behind one rule. Use `connect`."""

    def __init__(self, credentials: Credentials, settings: ServiceSettings, redactor: Redactor) -> None:
        self.settings = settings
        self.redactor = redactor
        self._credentials = credentials
        self._client = self._new_client()
        self._down = False

    def _new_client(self) -> "qai_hub.Client":
        import qai_hub
        from qai_hub.client import ClientConfig

        config = ClientConfig(
            api_token=self._credentials.token,
            api_url=self._credentials.api_url,
            web_url=self._credentials.web_url,
            verbose=False,
        )
        return qai_hub.Client(config=config)

    def job_url(self, job_id: str) -> str:
        """Page of a job."""
        return f"{self._credentials.web_url.rstrip('/')}/jobs/{job_id}/"

    def once(self, what: str, call: Call[T], transfer_bytes: int = 0) -> T:
        """Make one attempt.

        Args:
            what: is being done, for the message.
            call: the work.
            transfer_bytes: size of what moves, which widens the limit.

        Raises:
            RefusedError: the service said no.
            LimitedError: it asks to come back later.
            UnansweredError: everything else, a limit that passed included.
        """
        limit = self.settings.call_seconds + transfer_bytes / self.settings.transfer_bytes
        results: list[T] = []
        failures: list[KokoroNpuError] = []
        client = self._client

        def work() -> None:
            try:
                results.append(call(client))
            except KokoroNpuError as error:
                failures.append(type(error)(self.redactor.text(str(error))))
            except Exception as error:  # the client raises what its libraries raise; nothing of it may get out
                failures.append(self._translate(what, error))

        worker = threading.Thread(target=work, daemon=True)
        with contextlib.redirect_stdout(io.StringIO()):  # the client prints
            worker.start()
            worker.join(limit)
        if worker.is_alive():
            # It cannot be ended, but it can be made harmless: its next request has no token and no address.
            client.config.api_token, client.config.api_url = "", _REVOKED
            self._client = self._new_client()
            raise UnansweredError(f"AI Hub: {what}: no answer within {limit:g} s")
        if failures:
            raise failures[0]
        self._down = False
        return results[0]

    def call(self, what: str, call: Call[T], transfer_bytes: int = 0, patience: float | None = None) -> T:
        """Attempt until it works, the service refuses, or ``patience`` seconds passed since the first failure.

        For work that may be done twice: everything but the submission of a job.

        Raises:
            RefusedError: the service said no.
            UnansweredError: it gave no usable answer for too long.
        """
        pauses = self.pauses(what, patience)
        while True:
            try:
                return self.once(what, call, transfer_bytes)
            except UnansweredError as error:
                failure = error
            pauses(failure)

    def pauses(self, what: str, patience: float | None = None) -> Callable[[KokoroNpuError], None]:
        """A function that sleeps a little longer at each call, and raises once ``patience`` seconds have passed.

        Once it has raised, and until something works again, further work gets only the patience of a first contact: a
        service that is gone is not waited for once a device.
        """
        allowed = self.settings.patience_seconds if patience is None else patience
        if self._down:
            allowed = min(allowed, self.settings.connect_seconds)
        pause, end = self.settings.backoff_seconds, 0.0

        def sleep(failure: KokoroNpuError) -> None:
            nonlocal pause, end
            end = end or time.monotonic() + allowed  # counted from the first failure
            left = end - time.monotonic()
            if left <= 0:
                self._down = True
                reason = str(failure).removeprefix(f"AI Hub: {what}: ")
                raise UnansweredError(f"AI Hub: {what}: gave up after {allowed:g} s of failures, the last: {reason}")
            # Jitter: two stages that were limited together should not come back together.
            time.sleep(min(pause * random.uniform(0.5, 1), left))
            pause = min(2 * pause, _LONGEST_PAUSE)

        return sleep

    def _translate(self, what: str, error: Exception) -> KokoroNpuError:
        from qai_hub.client import RateLimitedError, UserError
        from qai_hub.public_rest_api import APIException

        message = self.redactor.text(_BOX.sub(" ", str(error)).strip())[:_LONGEST_MESSAGE]
        text = f"AI Hub: {what}: {message or type(error).__name__}"
        if isinstance(error, RateLimitedError):
            return LimitedError(text)
        if isinstance(error, UserError) and message.startswith("Failed to authenticate"):
            where = f"{self._credentials.web_url.rstrip('/')}/account/"
            return RefusedError(f"AI Hub refuses the token of {self._credentials.path}; the current one is at {where}")
        if isinstance(error, UserError):
            return RefusedError(text)
        if isinstance(error, APIException) and error.status_code == 200:
            return UnansweredError(f"AI Hub: {what}: the answer is not the service's (a proxy's page?)")
        # "Failed to create …: <why>" is the service's no; without a why it is an answer that was no answer.
        if type(error) is ValueError and _NO_REASON.match(message) and not _NO_REASON.fullmatch(message):
            return RefusedError(text)
        cause = error.__cause__
        reason = f" ({type(cause).__name__})" if cause is not None else ""
        return UnansweredError(text + reason)


@contextmanager
def connect(settings: ServiceSettings) -> Iterator[Service]:
    """Open the service: credentials are read and checked, and logging is free of the token until the end.

    Raises:
        KokoroNpuError: no usable credentials, or the client is not installed.
    """
    credentials = read_credentials()
    try:
        from qai_hub.util import session
    except ImportError:
        raise KokoroNpuError("compile.backend=aihub needs the qai-hub client: pip install -e '.[aihub]'") from None
    redactor = Redactor(credentials.token)
    own_retries: Any = session.MAX_RETRIES
    session.MAX_RETRIES = 0
    try:
        with redacted_logging(redactor):
            yield Service(credentials, settings, redactor)
    finally:
        session.MAX_RETRIES = own_retries
