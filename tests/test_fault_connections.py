"""Callers that misbehave on the wire: they are bounded, and everybody else is served meanwhile."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adapter_process import AdapterProcess
from tests.test_load import metric
from tests.wire import Answer, Connection, check_error

LORIS_HEADS, LORIS_BODIES = 900, 100
PING = b"GET /ping HTTP/1.1\r\nhost: a\r\n\r\n"
OPENAPI = b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n"
# Enough of them, unread, to fill every buffer between the adapter and its caller.
UNREAD_ANSWERS = 5000


def post(body: bytes, *, length: int | None = None, kind: str = "application/json") -> bytes:
    head = f"POST /invocations HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\ncontent-length: "
    return head.encode() + b"%d\r\n\r\n" % (len(body) if length is None else length) + body


@pytest.fixture
def body(support_route: dict[str, Any]) -> bytes:
    return json.dumps(support_route).encode()


def bits(answer: Answer | httpx.Response) -> Any:
    content = answer.body if isinstance(answer, Answer) else answer.content
    result = json.loads(content)["result"]
    return result["option_logits"], result["allowed_token_mass"]


@pytest.fixture
def start(byte_model: Path) -> Iterator[Callable[..., AdapterProcess]]:
    """Start adapters that end with the test."""
    with ExitStack() as running:

        def start(**variables: Any) -> AdapterProcess:
            adapter = AdapterProcess(
                BALLOT_GGUF_PATH=str(byte_model), BALLOT_THREADS="1", **variables
            )
            return running.enter_context(adapter).wait_ready()

        yield start


@pytest.fixture
def quick(start: Callable[..., AdapterProcess]) -> AdapterProcess:
    """An adapter that waits two seconds for its callers."""
    return start(BALLOT_BODY_TIMEOUT_SECONDS="2")


# A thread pool's own default.
MOST_PREPARING = (os.cpu_count() or 1) + 4


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it is so; a test that waits in vain is ended by pytest's own limit."""
    while not condition():
        time.sleep(0.01)


def files_of(adapter: AdapterProcess) -> int:
    return len(list(Path(f"/proc/{adapter.process.pid}/fd").iterdir()))


def status_of(adapter: AdapterProcess, name: str) -> int:
    """Return a number out of the kernel's status of the process: threads, or kilobytes."""
    lines = Path(f"/proc/{adapter.process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def reads_little(connection: Connection) -> Connection:
    """Give a connection a small window, so that what it does not read stays with the adapter."""
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return connection


# --- slow senders


class Drip:
    """Connections that send their bytes one by one, round after round, on a thread."""

    def __init__(self) -> None:
        self._left: dict[socket.socket, bytes] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def add(self, connection: Connection, data: bytes) -> None:
        self._left[connection.socket] = data

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            for connection, data in self._left.items():
                try:
                    connection.send(data[:1])
                except OSError:
                    continue
                self._left[connection] = data[1:]

    def __enter__(self) -> Drip:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def test_a_thousand_slow_senders_keep_nobody_out(
    start: Callable[..., AdapterProcess], body: bytes
) -> None:
    adapter = start(BALLOT_BODY_TIMEOUT_SECONDS="30")
    drip = Drip()
    with ExitStack() as open_, adapter.client() as client:
        expected = bits(client.post("/invocations", json=json.loads(body)))
        slow = [open_.enter_context(Connection(adapter.port)) for _ in range(1000)]
        for connection in slow[:LORIS_HEADS]:
            drip.add(connection, b"GET /" + b"a" * 1000)
        for connection in slow[LORIS_HEADS:]:
            connection.send(post(b"", length=100_000))
            drip.add(connection, b" " * 1000)
        with drip:
            wait_for(lambda: metric(client, "ballot_connections") == 1001)
            pings = {client.get("/ping").status_code for _ in range(20)}
            # The places are taken by the bodies that came first; the first of them gives way.
            answers = [client.post("/invocations", json=json.loads(body))]
            while answers[-1].status_code == 503:
                answers.append(client.post("/invocations", json=json.loads(body)))
            given_way = slow[LORIS_HEADS].answer()
            still_open = metric(client, "ballot_connections")

            assert pings == {200}
            assert bits(answers[-1]) == expected
            assert {answer.json()["code"] for answer in answers[:-1]} <= {"busy"}
            assert (given_way.status, check_error(given_way)["code"]) == (503, "busy")
            assert check_error(slow[-1].answer())["code"] == "busy"
            assert still_open == 1001


def test_slow_headers_are_given_up(quick: AdapterProcess, body: bytes) -> None:
    starts = [b"G", PING[:-1], post(body)[:60], PING + b"POST /invocations"]
    with ExitStack() as open_, quick.client() as client:
        slow = []
        for data in starts:
            slow.append(open_.enter_context(Connection(quick.port)))
            slow[-1].send(data)
        silent = open_.enter_context(Connection(quick.port))
        assert slow[-1].answer().status == 200
        slow[-1].send(b" ")
        for connection in slow:
            answer = connection.answer()
            error = check_error(answer)
            assert (answer.status, error["code"]) == (408, "head_timeout")
            assert error["error"] == "the headers were not complete after 2 seconds"
            assert answer.headers["connection"] == "close"
            assert connection.is_closed_by_adapter()
        # Whoever has not begun to ask keeps nobody waiting.
        silent.send(PING)
        assert silent.answer().status == 200
        wait_for(lambda: metric(client, "ballot_connections") == 2)


def test_a_body_that_goes_on_after_its_answer_is_given_up(quick: AdapterProcess) -> None:
    with Connection(quick.port) as connection:
        connection.send(post(b"", length=10_000_000))
        assert check_error(connection.answer())["code"] == "body_too_large"
        with Drip() as drip:
            drip.add(connection, b" " * 1000)
            connection.socket.settimeout(60)
            assert connection.is_closed_by_adapter()


# --- many connections


def test_more_connections_than_files_close_the_idlest(
    start: Callable[..., AdapterProcess], body: bytes
) -> None:
    limited = f"ulimit -n 256; exec {sys.executable} -m adapter serve"
    adapter = start(command=("/bin/sh", "-c", limited), BALLOT_BODY_TIMEOUT_SECONDS="3600")
    with ExitStack() as open_:
        busy = open_.enter_context(Connection(adapter.port))
        busy.send(post(body[:-1], length=len(body)))
        idle = []
        for _ in range(100):
            idle += [open_.enter_context(Connection(adapter.port)) for _ in range(10)]
            for connection in idle[-5:]:
                connection.send(b"GET /pi")
            with Connection(adapter.port) as caller:
                caller.send(PING)
                assert caller.answer().status == 200
        busy.send(body[-1:])
        with adapter.client() as client:
            expected = bits(client.post("/invocations", json=json.loads(body)))
            open_now = metric(client, "ballot_connections")
        poll = select.poll()
        for connection in idle:
            poll.register(connection.socket, select.POLLIN)
        closed = {number for number, _ in poll.poll(0)}

        # Half of the files are kept for what is no connection.
        assert open_now == 128
        # The oldest are gone, the newest are not, and whoever was waited for was never idle.
        assert {connection.socket.fileno() for connection in idle[:800]} <= closed
        assert not {connection.socket.fileno() for connection in idle[-100:]} & closed
        assert bits(busy.answer()) == expected
        assert files_of(adapter) < 256
    assert adapter.terminate() == 0
    assert [line for line in adapter.lines if json.loads(line)["level"] == "error"] == []


def test_ten_thousand_connections_that_are_dropped_leave_nothing_behind(
    start: Callable[..., AdapterProcess], body: bytes
) -> None:
    adapter = start()
    parts = [b"", b"GET /pi", PING, post(body[:50], length=len(body)), post(body)]

    def drop(connections: int) -> None:
        for _ in range(connections // 200):
            opened = [Connection(adapter.port) for _ in range(200)]
            for index, connection in enumerate(opened):
                connection.send(parts[index % len(parts)])
                if index % 2:
                    # Closing now resets the connection instead of ending it.
                    linger = struct.pack("ii", 1, 0)
                    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            for connection in opened:
                connection.close()
        wait_for(lambda: metric(client, "ballot_connections") == 1)
        wait_for(lambda: metric(client, "ballot_queue_depth") == 0)

    with adapter.client() as client:
        expected = bits(client.post("/invocations", json=json.loads(body)))
        drop(2000)
        files, threads = files_of(adapter), status_of(adapter, "Threads")
        kilobytes = status_of(adapter, "VmRSS")
        drop(8000)

        assert files_of(adapter) == files
        # Those that prepare requests are made as they are needed, and then kept.
        assert status_of(adapter, "Threads") - threads < MOST_PREPARING
        # A leak of one kilobyte a connection would be 8,000.
        assert status_of(adapter, "VmRSS") - kilobytes < 4000
        assert bits(client.post("/invocations", json=json.loads(body))) == expected
    assert adapter.terminate() == 0


# --- half-closed connections


def test_whoever_closes_the_sending_side_after_asking_is_answered(
    quick: AdapterProcess, body: bytes
) -> None:
    with quick.client() as client:
        expected = bits(client.post("/invocations", json=json.loads(body)))
    with Connection(quick.port) as connection:
        connection.send(PING + post(body) + PING + post(body))
        connection.socket.shutdown(socket.SHUT_WR)
        answers: list[Answer] = []
        while len(answers) < 4:
            answer = connection.answer()
            # An interim answer, by which the adapter finds out whether anybody is there.
            if answer.status != 100:
                answers.append(answer)

        assert [answer.status for answer in answers] == [200] * 4
        assert bits(answers[1]) == bits(answers[3]) == expected
        assert connection.is_closed_by_adapter()


@pytest.mark.parametrize("asked", [b"", b"GET /pi", PING + b"GET /pi"])
def test_whoever_closes_it_before_asking_is_hung_up_on(quick: AdapterProcess, asked: bytes) -> None:
    with Connection(quick.port) as connection:
        connection.send(asked)
        connection.socket.shutdown(socket.SHUT_WR)
        if asked.startswith(PING):
            assert connection.answer().status == 200
        assert connection.is_closed_by_adapter()


def test_whoever_closes_it_within_the_body_gives_the_place_back(
    start: Callable[..., AdapterProcess], body: bytes
) -> None:
    adapter = start(BALLOT_MAX_QUEUE="0", BALLOT_BODY_TIMEOUT_SECONDS="3600")
    with Connection(adapter.port) as connection, adapter.client() as client:
        # The second request is still short of a byte when the first is answered.
        connection.send(post(body) + post(body[:-1], length=len(body)))
        connection.socket.shutdown(socket.SHUT_WR)
        answer = connection.answer()
        while answer.status == 100:
            answer = connection.answer()

        assert answer.status == 200
        assert connection.is_closed_by_adapter()
        wait_for(
            lambda: client.post("/invocations", json=json.loads(body)).status_code == 200,
        )


# --- callers that do not read


def test_an_answer_that_nobody_takes_is_given_up(quick: AdapterProcess, body: bytes) -> None:
    with reads_little(Connection(quick.port)) as connection, quick.client() as client:
        kilobytes = status_of(quick, "VmRSS")
        sender = threading.Thread(target=send_all, args=(connection, OPENAPI * UNREAD_ANSWERS))
        sender.start()
        wait_for(lambda: metric(client, "ballot_connections") == 2)
        assert client.post("/invocations", json=json.loads(body)).status_code == 200
        wait_for(lambda: metric(client, "ballot_connections") == 1)
        sender.join()
        # All of the answers would be a hundred megabytes.
        assert status_of(quick, "VmRSS") - kilobytes < 30_000


def send_all(connection: Connection, data: bytes) -> None:
    with suppress(ConnectionError):
        connection.send(data)


def test_lines_that_nobody_takes_are_given_up_and_give_the_place_back(
    start: Callable[..., AdapterProcess], body: bytes
) -> None:
    adapter = start(BALLOT_MAX_QUEUE="0", BALLOT_BODY_TIMEOUT_SECONDS="1")
    lines = post(b"x\n" * 300_000, kind="application/jsonlines")
    with reads_little(Connection(adapter.port)) as connection, adapter.client() as client:
        kilobytes = status_of(adapter, "VmRSS")
        connection.send(lines)
        while (answer := client.post("/invocations", json=json.loads(body))).status_code == 200:
            pass
        assert answer.json()["code"] == "busy"
        wait_for(
            lambda: client.post("/invocations", json=json.loads(body)).status_code == 200,
        )
        wait_for(lambda: metric(client, "ballot_connections") == 1)
        # All of the lines would be fifty megabytes.
        assert status_of(adapter, "VmRSS") - kilobytes < 20_000


def test_whoever_takes_an_answer_a_bit_at_a_time_gives_the_place_to_others(
    start: Callable[..., AdapterProcess], body: bytes
) -> None:
    adapter = start(BALLOT_MAX_QUEUE="0", BALLOT_BODY_TIMEOUT_SECONDS="30")
    lines = post(b"x\n" * 300_000, kind="application/jsonlines")
    ended = threading.Event()

    def trickle(connection: Connection) -> None:
        with suppress(OSError):
            while not ended.wait(0.1):
                connection.socket.recv(100)

    with reads_little(Connection(adapter.port)) as connection, adapter.client() as client:
        connection.send(lines)
        reader = threading.Thread(target=trickle, args=(connection,))
        reader.start()
        while client.post("/invocations", json=json.loads(body)).status_code == 200:
            pass
        refused = 1
        while (answer := client.post("/invocations", json=json.loads(body))).status_code == 503:
            assert answer.json()["code"] == "busy"
            refused += 1
        ended.set()
        reader.join()

        assert answer.status_code == 200
        # The request whose lines they are ends as busy, too.
        busy = 'ballot_requests_total{outcome="busy",route="/invocations"}'
        wait_for(lambda: metric(client, busy) == refused + 1)


# --- the end


def test_sigterm_ends_it_whatever_its_callers_do(
    start: Callable[..., AdapterProcess], body: bytes
) -> None:
    adapter = start(BALLOT_BODY_TIMEOUT_SECONDS="3600", BALLOT_DRAIN_TIMEOUT_SECONDS="1")
    lines = post(b"x\n" * 300_000, kind="application/jsonlines")
    with ExitStack() as open_, adapter.client() as client:
        starts = [b"", b"GET /pi", post(b"", length=100), post(body[:-1], length=len(body))]
        slow = [open_.enter_context(Connection(adapter.port)) for _ in starts]
        for connection, data in zip(slow, starts, strict=True):
            connection.send(data)
        deaf = open_.enter_context(reads_little(Connection(adapter.port)))
        deaf.send(lines)
        wait_for(lambda: metric(client, "ballot_queue_depth") == 2)

        assert adapter.terminate() == 0
        for connection in slow[2:]:
            answer = connection.answer()
            assert (answer.status, check_error(answer)["code"]) == (503, "draining")
        for connection in slow[:2]:
            assert connection.is_closed_by_adapter()
    assert [line for line in adapter.lines if json.loads(line)["level"] == "error"] == []


def test_the_limit_on_files_is_raised_as_far_as_it_goes(
    start: Callable[..., AdapterProcess],
) -> None:
    limited = f"ulimit -S -n 300; exec {sys.executable} -m adapter serve"
    adapter = start(command=("/bin/sh", "-c", limited))
    soft, hard = resource.prlimit(adapter.process.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, 2048 + 128)
