"""The time-outs of a connection, on a loop whose clock the test moves by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from adapter.protocol import Limits, Protocol, limited

PATIENCE, KEEP_ALIVE = 10, 75
PING = b"GET /ping HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST /invocations HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n"


class Timer:
    """A call that is due at a time, unless it is cancelled."""

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.is_live = True

    def cancel(self) -> None:
        self.is_live = False


class Loop:
    """What a connection needs of an event loop; handlers are not run: the test answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + seconds, call))
        return self.timers[-1]

    def create_task(self, handler: Coroutine[Any, Any, None], **_: Any) -> asyncio.Future[None]:
        handler.close()
        return asyncio.Future(loop=cast("asyncio.AbstractEventLoop", self))

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context)

    @property
    def live(self) -> list[Timer]:
        return [timer for timer in self.timers if timer.is_live]

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.live if timer.at <= end]:
            timer = min(due, key=lambda timer: timer.at)
            self.now = timer.at
            timer.is_live = False
            timer.call()
        self.now = end


class Transport:
    """A caller that takes what the test says of it; `sent` is all that was written."""

    def __init__(self) -> None:
        self.sent = b""
        self.unsent = 0
        self.is_aborted = False
        self.is_closed = False

    def get_extra_info(self, _: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Server:
    """Makes connections, and answers on them."""

    def __init__(self, connections: int = 100) -> None:
        self.loop = Loop()
        self.state = ServerState()
        limits = Limits(connections=connections, patience_seconds=PATIENCE)
        self._protocol = limited(limits)
        self._config = Config(
            self._application,
            lifespan="off",
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE,
            interface="asgi3",
        )

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("handlers are not run here")

    def connect(self) -> tuple[Protocol, Transport]:
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        protocol, transport = self._protocol(self._config, self.state, {}, loop), Transport()
        protocol.connection_made(cast("asyncio.Transport", transport))
        return protocol, transport


def send(protocol: Protocol, message: dict[str, Any]) -> None:
    with pytest.raises(StopIteration):
        protocol.cycle.send(cast("Any", message)).send(None)


def answer(protocol: Protocol, status: int = 200, *, ends: bool = True) -> None:
    headers = [(b"content-length", b"4")]
    send(protocol, {"type": "http.response.start", "status": status, "headers": headers})
    if ends:
        send(protocol, {"type": "http.response.body", "body": b"done"})


def test_a_connection_opened_ahead_of_need_lives_as_long_as_one_that_is_kept() -> None:
    server = Server()
    _, unused = server.connect()
    used, kept = server.connect()
    used.data_received(PING)
    answer(used)
    server.loop.advance(KEEP_ALIVE - 1)
    assert not unused.is_closing()
    assert not kept.is_closing()
    server.loop.advance(1)

    assert unused.is_closing()
    assert unused.sent == b""
    assert kept.is_closing()
    assert kept.sent.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("status", [413, 503])
def test_a_connection_is_kept_whose_request_was_refused_before_its_body_came(status: int) -> None:
    server = Server()
    protocol, transport = server.connect()
    protocol.data_received(POST + b"x" * 50)
    answer(protocol, status)
    server.loop.advance(PATIENCE - 1)
    protocol.data_received(b"x" * 50)
    server.loop.advance(KEEP_ALIVE - 1)
    assert not transport.is_closing()
    protocol.data_received(PING)
    answer(protocol)
    assert transport.sent.count(b"HTTP/1.1 ") == 2
    server.loop.advance(KEEP_ALIVE - 1)
    assert not transport.is_closing()


def test_a_rest_of_a_body_that_is_answered_is_not_waited_for_for_long() -> None:
    server = Server()
    protocol, transport = server.connect()
    protocol.data_received(POST)
    answer(protocol, 413)
    for _ in range(PATIENCE - 1):
        server.loop.advance(1)
        protocol.data_received(b"x")
    assert not transport.is_closing()
    server.loop.advance(1)

    assert transport.is_aborted


@pytest.mark.parametrize("before", [b"", PING], ids=["first", "next"])
def test_a_head_is_due_from_its_first_byte_on(before: bytes) -> None:
    server = Server()
    protocol, transport = server.connect()
    server.loop.advance(KEEP_ALIVE - 1)
    # The second head has begun to come before the first request is answered.
    protocol.data_received(before + b"G")
    server.loop.advance(PATIENCE - 1)
    if before:
        answer(protocol)
        server.loop.advance(PATIENCE - 1)
    protocol.data_received(b"E")
    assert not transport.is_closing()
    server.loop.advance(1)

    assert transport.is_closing()
    refusal = json.loads(transport.sent.split(b"\r\n\r\n")[-1])
    assert refusal["code"] == "head_timeout"


def test_a_slow_reader_of_a_long_answer_is_served_as_long_as_it_reads() -> None:
    server = Server()
    protocol, transport = server.connect()
    protocol.data_received(PING)
    answer(protocol, ends=False)
    for _ in range(5):
        # As much is added as was taken, each time.
        transport.unsent = 66_000
        protocol.pause_writing()
        server.loop.advance(PATIENCE - 1)
        transport.unsent = 16_000
        protocol.resume_writing()
    for size in (20_000, 30_000, 30_000):
        # The buffer has room: the answer may go on, and what was taken be filled up.
        transport.unsent = size
        server.loop.advance(PATIENCE)
    assert not transport.is_closing()
    transport.unsent = 66_000
    protocol.pause_writing()
    server.loop.advance(PATIENCE)

    assert transport.is_aborted


def test_the_end_of_an_answer_that_nobody_takes_is_given_up() -> None:
    server = Server()
    protocol, transport = server.connect()
    protocol.data_received(PING)
    transport.unsent = 10_000
    answer(protocol)
    transport.unsent = 9_000
    server.loop.advance(PATIENCE)
    assert not transport.is_closing()
    server.loop.advance(PATIENCE)

    assert transport.is_aborted


@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
@pytest.mark.parametrize("asked", [b"", b"G", PING, POST], ids=["", "head", "whole", "rest"])
def test_nothing_is_left_to_wait_for_on_a_connection_that_is_lost(
    error: Exception | None, asked: bytes
) -> None:
    server = Server()
    protocol, transport = server.connect()
    if asked:
        protocol.data_received(asked)
    if b"\r\n\r\n" in asked:
        transport.unsent = 4
        answer(protocol)
    assert server.loop.live
    protocol.connection_lost(error)

    assert server.loop.live == []
    assert server.state.connections == set()


def test_whoever_has_yet_to_take_the_last_of_an_answer_is_not_the_first_to_go() -> None:
    server = Server(connections=3)
    opened = []
    for unsent in (10, 0, 0):
        protocol, transport = server.connect()
        protocol.data_received(PING)
        transport.unsent = unsent
        answer(protocol)
        opened.append(transport)
        server.loop.advance(1)
    server.connect()
    assert [transport.is_aborted for transport in opened] == [False, True, False]
    busy, _ = server.connect()
    busy.data_received(PING)
    assert [transport.is_aborted for transport in opened] == [False, True, True]
