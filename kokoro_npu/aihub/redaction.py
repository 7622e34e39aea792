"""The token stays inside: every text that leaves goes through here."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, quote_plus

_HIDDEN = "[token]"
# Queries of pre-signed storage addresses are credentials as well, if short-lived ones: with their address, or as
# urllib3 logs them, without.
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>]+")
_HEADER = re.compile(r"(x-amz-security-token['\"]?\s*[:=]\s*b?['\"]?)[^\s'\",;&]+", re.IGNORECASE)
_SIGNED = re.compile(r"(\?|&)(X-Amz-[\w-]+|Signature|AWSAccessKeyId)=[^\s&'\"<>]*", re.IGNORECASE)


class Redactor:
    """Removes one secret from texts."""

    def __init__(self, secret: str) -> None:
        forms = {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}
        # Longest first, or a shorter form would leave the rest of a longer one.
        self._forms = sorted(filter(None, forms), key=len, reverse=True)

    def __repr__(self) -> str:
        return "Redactor()"

    def text(self, text: str) -> str:
        """``text`` without the secret, the queries of addresses, and signatures."""
        for form in self._forms:
            text = text.replace(form, _HIDDEN)
        return _HEADER.sub(r"\1…", _SIGNED.sub(r"\1…", _QUERY.sub(r"\1?…", text)))


@contextmanager
def redacted_logging(redactor: Redactor) -> Iterator[None]:
    """Take the secret out of every log record of the process, whatever logger or handler it meets.

    A filter on a logger does not see the records of its children, and handlers may be added at any time; the record
    factory sees all.
    """
    inner = logging.getLogRecordFactory()
    formatter = logging.Formatter()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = inner(*args, **kwargs)
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit: logging would print them at the handler
            message = f"{record.msg} {record.args}"
        record.msg, record.args = redactor.text(message), ()
        if record.exc_info:
            record.exc_text = redactor.text(formatter.formatException(record.exc_info))
            record.exc_info = None
        return record

    logging.setLogRecordFactory(make)
    try:
        yield
    finally:
        logging.setLogRecordFactory(inner)
