"""HTTP on the wire: h11's parser, strict and bounded, and the one error that it answers itself.

It bounds a request's line and headers together, and reads the body of a request that offers an
upgrade (Java's client offers `h2c` with each): httptools does neither.
"""

from __future__ import annotations

import json
import uuid

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from adapter.errors import MalformedHttp

MAX_HEADER_BYTES = 65_536


class Protocol(H11Protocol):
    """uvicorn's own, but what is not HTTP gets an error in the shape of all others."""

    def send_400_response(self, msg: str) -> None:
        """Answer `malformed_http`, unless another answer has begun, and hang up."""
        request_id = uuid.uuid4().hex
        error = MalformedHttp(
            f"this is not HTTP/1.1, or its headers have more than {MAX_HEADER_BYTES} bytes"
        )
        body = json.dumps(error.as_json(request_id)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        answer: list[h11.Event] = [
            h11.Response(status_code=error.status, headers=headers, reason=b"Bad Request"),
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
