"""A local server that stands for the model hub: files, byte ranges, and the ways it can fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the server has by path, and how it answers.

    `statuses` are answered first, one a request. While `broken` is more than 0, an answer stops
    half-way through what was asked for. `redirects` send a path elsewhere.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    broken: int = 0
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub on a free port of this machine."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers["Range"]
            hub.requests.append((self.path, asked))
            if hub.statuses:
                self._answer(hub.statuses.pop(0), b"")
            elif self.path in hub.redirects:
                self.send_response(302)
                self.send_header("Location", hub.redirects[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif self.path not in hub.files:
                self._answer(404, b"")
            else:
                self._send(hub.files[self.path], asked if hub.ranges else None)

        def _send(self, content: bytes, asked: str | None) -> None:
            if asked is None:
                return self._answer(200, content)
            match = re.fullmatch(r"bytes=(\d+)-", asked)
            assert match is not None
            start = int(match[1])
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return self._answer(206, content[start:], span=span)

        def _answer(self, status: int, body: bytes, *, span: str | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if span is not None:
                self.send_header("Content-Range", span)
            self.end_headers()
            if hub.broken and body:
                hub.broken -= 1
                body = body[: len(body) // 2]
                self.close_connection = True
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
