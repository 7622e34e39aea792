"""A loopback server with the hub's resolve endpoints, for the real huggingface_hub client."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the server holds and what was asked of it.

    Attributes:
        files: path inside the repository -> bytes.
        cut_at: position in a file behind which nothing passes and the connection drops; None serves all.
        requests: (method, path inside the repository, first byte asked for).
    """

    repository: str
    revision: str
    files: dict[str, bytes]
    cut_at: int | None = None
    endpoint: str = ""
    requests: list[tuple[str, str, int]] = field(default_factory=list)

    def downloads(self, name: str) -> list[int]:
        """First byte of each GET of a file."""
        return [start for method, path, start in self.requests if method == "GET" and path == name]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Run the server on a free port and set ``hub.endpoint``."""
    prefix = f"/{hub.repository}/resolve/{hub.revision}/"

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            name = self.path.removeprefix(prefix)
            content = hub.files.get(name) if self.path.startswith(prefix) else None
            if content is None:
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("X-Repo-Commit", hub.revision)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(asked.group(1)) if asked else 0
            hub.requests.append((self.command, name, start))
            self.send_response(206 if start else 200)
            self.send_header("X-Repo-Commit", hub.revision)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if not body:
                return
            end = len(content) if hub.cut_at is None else max(start, hub.cut_at)
            self.wfile.write(content[start:end])
            self.close_connection = end < len(content)

        def log_message(self, *_: object) -> None:
            """Keep the test output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
