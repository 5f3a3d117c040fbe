"""HTTP on the wire: h11's parser, bounded in bytes and, between requests, in time."""

from __future__ import annotations

import asyncio
import json
import uuid

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEADER_BYTES = 65_536
# How long a connection may take to make a request, or to end the body of one that is answered.
IDLE_SECONDS = 15.0


class Connection(H11Protocol):
    """uvicorn's own, but slow requests end, and what is not HTTP gets an error as all others."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes; no number of them, short of a whole request, buys more time."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        is_idle = self.conn.our_state in (h11.IDLE, h11.DONE)
        if not is_idle:
            self._stop_watching()
        elif self._patience is None:
            self._patience = self.loop.call_later(IDLE_SECONDS, self.transport.close)

    def _stop_watching(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def send_400_response(self, msg: str) -> None:
        """Answer `malformed_http`, unless another answer has begun, and hang up."""
        request_id = uuid.uuid4().hex
        error = {
            "error": f"this is not HTTP/1.1, or its headers have over {MAX_HEADER_BYTES} bytes",
            "code": "malformed_http",
            "retryable": False,
            "field": None,
            "request_id": request_id,
        }
        body = json.dumps(error).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        answer: list[h11.Event] = [
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        try:
            for event in answer:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            # The request was answered before its body went wrong.
            pass
        if self.cycle is not None:
            # A request whose body went wrong has its answer: whatever its handler says is unheard.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
