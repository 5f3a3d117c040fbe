"""An adapter that is scripted, for JSON lines: what a line gets is plain from the line.

It answers as docs/batch.md says that the adapter does, without a model, so that its answers and
its faults are exactly those that a test asks for.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.cli_process import MODEL, Received, Scripted, result

# What a script returns to have the adapter answer as it does.
ANSWER = None
# The connection breaks in the middle of the answer.
BREAK = Scripted(-1)


def decision(number: int) -> dict[str, Any]:
    """Return a request whose id has the number."""
    options = [{"id": "yes", "description": "It is."}, {"id": "no", "description": "It is not."}]
    return {
        "decision": {
            "id": f"d-{number}",
            "state": f"The number is {number}.",
            "question": "Is it even?",
            "options": options,
        }
    }


def encoded(*requests: Any) -> bytes:
    """Return requests as JSON lines; bytes are a line as they are."""
    return b"".join(
        (request if isinstance(request, bytes) else json.dumps(request).encode()) + b"\n"
        for request in requests
    )


class LinesServer:
    """Answers requests of JSON lines on the loopback.

    `script` sees each request with its lines first, and may answer in the adapter's place;
    `refuse` sees each line first, and may name an error's code for it.
    """

    def __init__(
        self,
        *,
        script: Callable[[Received, list[bytes]], Scripted | None] = lambda *_: ANSWER,
        refuse: Callable[[bytes], str | None] = lambda _: None,
        sha256: str = str(MODEL["sha256"]),
        seconds_per_line: float = 0,
    ) -> None:
        self.received: list[Received] = []
        self.lines_asked = 0
        self._script, self._refuse, self._sha256 = script, refuse, sha256
        self._seconds_per_line = seconds_per_line
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: Received) -> Scripted:
        """Return what a request gets."""
        lines = request.body.split(b"\n")
        if not lines[-1]:
            lines.pop()
        with self._lock:
            self.received.append(request)
            self.lines_asked += len(lines)
        scripted = self._script(request, lines)
        if scripted is not None and scripted is not BREAK:
            return scripted
        time.sleep(self._seconds_per_line * len(lines))
        answers = encoded(*(self._line(place, line) for place, line in enumerate(lines, start=1)))
        status = BREAK.status if scripted is BREAK else 200
        return Scripted(status, answers, {"content-type": "application/jsonlines"})

    def _line(self, place: int, line: bytes) -> dict[str, Any]:
        code, id_ = self._refuse(line), ""
        try:
            asked = json.loads(line)["decision"]
            id_ = asked["id"]
        except (ValueError, KeyError, TypeError):
            code = code or "invalid_json"
        if code is None:
            scored = result(id_, {option["id"]: 0.5 for option in asked["options"]})
            return {"result": {**scored, "model": {**MODEL, "sha256": self._sha256}}}
        said = {
            "error": f"this line is {code}",
            "code": code,
            "retryable": code in ("busy", "scoring_failed", "deadline_exceeded"),
            "field": None,
            "request_id": "id-1",
            "line": place,
        }
        return {**said, "id": id_} if id_ else said

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = server.answer(Received(self.path, headers, self.rfile.read(length)))
                breaks = answer.status == BREAK.status
                self.send_response(200 if breaks else answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body[: len(answer.body) // 2] if breaks else answer.body)
                self.close_connection = breaks

        return Handler
