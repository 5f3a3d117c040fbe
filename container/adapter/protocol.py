"""HTTP on the wire: h11's parser, strict and bounded, and the errors that it answers itself.

It bounds a request's line and headers together, and reads the body of a request that offers an
upgrade (Java's client offers `h2c` with each): httptools does neither. What uvicorn leaves open,
it bounds too: how many connections there are, how long one may take to send its headers, how long
it may be without a request, and how long an answer may lie there unread.
"""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from adapter.errors import MalformedHttp, RequestError, SlowHead

MAX_HEADER_BYTES = 65_536
# How soon after its caller has hung up a request is given up, where that cannot be told at once.
_RESET_SECONDS = 0.05


@dataclass(frozen=True)
class Limits:
    """How many connections may be open, and for how many seconds a caller may keep us waiting."""

    connections: int
    patience_seconds: float


class Due(Enum):
    """What a caller has begun to send and must end in time, while no answer is due to it."""

    HEAD = "head"
    REST = "rest of a body that is answered already"


class Protocol(H11Protocol):
    """uvicorn's own, within `limits`; what is not HTTP gets an error in the shape of all others.

    A connection is idle when all requests whose headers have come are answered.
    """

    limits: ClassVar[Limits]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._idle_since = self.loop.time()
        self._due: Due | None = None
        self._due_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._unsent_timer: asyncio.TimerHandle | None = None
        self._is_half_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost that was asked, if the connection closed now."""
        # uvicorn's annotation leaves out that there is none before the first request.
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request; where connections are too many, the idlest has to go."""
        super().connection_made(transport)
        self._watch_caller()
        if len(self.connections) > self.limits.connections:
            others = [other for other in self.connections if isinstance(other, Protocol)]
            idle = [other for other in others if other.is_idle and other is not self]
            min(idle, key=Protocol._worth, default=self).hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait for anything."""
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came; with the first byte of a request, its headers become due."""
        super().data_received(data)
        self._watch_caller()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what was asked to the end before the caller closed its sending side.

        A caller that has hung up altogether looks the same, until something is sent to it.
        """
        if self._is_half_closed:
            return True
        if self.is_idle or self.cycle.more_body or self.conn.their_http_version == b"1.0":
            return False
        self._is_half_closed = True
        if not self.cycle.response_started:
            probe = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(probe) or b"")
        self._hang_up_when_reset()
        return True

    def on_response_complete(self) -> None:
        """Go on with the next request; whoever sends none any more, or does not read, has to go."""
        self._idle_since = self.loop.time()
        super().on_response_complete()
        if self._is_half_closed and (self.is_idle or self.cycle.more_body):
            self.transport.close()
        self._watch_caller()
        self._watch_unsent()

    def pause_writing(self) -> None:
        """Wait for the caller to take what was sent, but not forever."""
        super().pause_writing()
        self._watch_unsent()

    def resume_writing(self) -> None:
        """Go on: the caller has taken some of it."""
        super().resume_writing()
        self._watch_unsent()

    def shutdown(self) -> None:
        """Close once what is asked is answered; a connection that is closing needs no telling."""
        if not self.transport.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer `malformed_http`, unless another answer has begun, and hang up."""
        self._refuse(
            MalformedHttp(
                f"this is not HTTP/1.1, or its headers have more than {MAX_HEADER_BYTES} bytes"
            )
        )

    def hang_up(self) -> None:
        """Drop the connection, and what is not sent of its answers."""
        # It is gone as far as the limit is concerned, though the loop has yet to close it.
        self.connections.discard(self)
        self.transport.abort()

    def _refuse(self, error: RequestError) -> None:
        request_id = uuid.uuid4().hex
        body = json.dumps(error.as_json(request_id)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        reason = STATUS_PHRASES[error.status]
        answer: list[h11.Event] = [
            h11.Response(status_code=error.status, headers=headers, reason=reason),
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
        self._watch_unsent()

    def _worth(self) -> tuple[bool, float]:
        """Order idle connections: those whose callers have all of their answers go first."""
        return self.transport.get_write_buffer_size() > 0, self._idle_since

    def _watch_caller(self) -> None:
        """Wait for what the caller has begun to send, or else for the next request, in time."""
        due = self._what_is_due()
        if due is not self._due:
            self._due = due
            self._stop_waiting()
            if due is not None:
                seconds = self.limits.patience_seconds
                self._due_timer = self.loop.call_later(seconds, self._is_late)
        if not self.is_idle or due is not None:
            self._unset_keepalive_if_required()
        elif self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _what_is_due(self) -> Due | None:
        if not self.is_idle or self.transport.is_closing():
            return None
        if self.conn.their_state is h11.SEND_BODY:
            return Due.REST
        return Due.HEAD if self.conn.trailing_data[0] else None

    def _is_late(self) -> None:
        """Say so, to whoever has begun a request; whoever has its answer is only hung up on."""
        if self._due is Due.HEAD:
            seconds = f"{self.limits.patience_seconds:g}"
            self._refuse(SlowHead(f"the headers were not complete after {seconds} seconds"))
        else:
            self.hang_up()

    def _stop_waiting(self) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None

    def _watch_unsent(self) -> None:
        """Hang up if none of what waits to be sent is taken any more.

        Whatever lets more be added to it, or ends that, begins to watch anew.
        """
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes:
            seconds = self.limits.patience_seconds
            self._unsent_timer = self.loop.call_later(seconds, self._check_unsent)

    def _check_unsent(self) -> None:
        # Where the answer goes on meanwhile, what was taken may have been filled up again.
        is_all = self.flow.write_paused or self.is_idle or self.transport.is_closing()
        if is_all and 0 < self._unsent_bytes <= self.transport.get_write_buffer_size():
            self.hang_up()
        else:
            self._watch_unsent()

    def _hang_up_when_reset(self) -> None:
        """Hang up on a caller that answers what it is sent by a reset, while its answer is due."""
        if self.transport.is_closing() or self.is_idle:
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.hang_up()
        else:
            self.loop.call_later(_RESET_SECONDS, self._hang_up_when_reset)

    def _stop_timers(self) -> None:
        # uvicorn leaves its own where the connection ends by an error.
        self._unset_keepalive_if_required()
        self._stop_waiting()
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()


def limited(limits: Limits) -> type[Protocol]:
    """Return the protocol within `limits`, as a class: uvicorn makes the instances."""
    return type("LimitedProtocol", (Protocol,), {"limits": limits})
