"""A gateway in this process, on a port of its own, and scripted servers to put behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from ballot.gateway import GatewaySettings, create_app
from ballot.gateway.serve import listen, server
from tests.adapter_process import PATIENCE


@dataclass(frozen=True)
class RunningGateway:
    """A gateway that serves."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, **options)


@contextlib.contextmanager
def running_gateway(**settings: Any) -> Iterator[RunningGateway]:
    """Run a gateway; its settings are the given ones, on any free port."""
    chosen = GatewaySettings(**{"port": 0, **settings})
    listener = listen(chosen)
    serving = server(create_app(chosen), chosen)
    thread = threading.Thread(
        target=lambda: asyncio.run(serving.serve(sockets=[listener])), name="gateway"
    )
    thread.start()
    try:
        yield RunningGateway(listener.getsockname()[1])
    finally:
        serving.should_exit = True
        thread.join(timeout=PATIENCE)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Asked:
    """A request as it came; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """The other end of a connection to a scripted server."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(PATIENCE)
        self._reader = connection.makefile("rb")

    def read(self) -> Asked | None:
        """Return the next request; None at the connection's end."""
        try:
            first = self._reader.readline().split()
            if not first:
                return None
            headers = {}
            while (line := self._reader.readline().strip()) != b"":
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            body = self._reader.read(int(headers.get("content-length", "0")))
        except OSError:
            return None
        return Asked(first[0].decode(), first[1].decode(), headers, body)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """Send a whole answer; the headers' names have _ for -."""
        named = {"content-type": "application/json", "content-length": str(len(body))}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self.send(f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode() + body)

    def hang_up(self) -> None:
        """Close the connection as usual."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Close the connection with a reset."""
        linger = struct.pack("ii", 1, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close()

    def wait_closed(self) -> None:
        """Return once the other end has closed the connection."""
        with contextlib.suppress(ConnectionError):
            assert self._reader.read(1) == b""

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


Script = Callable[[Peer, Asked], None]


class ScriptedServer:
    """An HTTP server on loopback whose answers are a function's; it keeps what it was asked."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._peers: list[tuple[Peer, threading.Thread]] = []
        self._is_open = True
        self.asked: list[Asked] = []
        self.arrived: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self.failures: list[BaseException] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def wait_asked(self) -> Asked:
        """Return the next request, once it has come."""
        return self.arrived.get(timeout=PATIENCE)

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if not self._is_open:
                connection.close()
                return
            peer = Peer(connection)
            thread = threading.Thread(target=self._serve, args=(peer,))
            self._peers.append((peer, thread))
            thread.start()

    def _serve(self, peer: Peer) -> None:
        try:
            while (asked := peer.read()) is not None:
                self.asked.append(asked)
                self.arrived.put(asked)
                self._script(peer, asked)
        except (OSError, ValueError):
            pass  # one of the two ends has closed the connection
        except BaseException as error:
            self.failures.append(error)
        finally:
            peer.close()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        with socket.create_connection(self._listener.getsockname()[:2]):
            self._accepting.join(timeout=PATIENCE)
        self._listener.close()
        for peer, thread in self._peers:
            # The other end may keep its connections for another request.
            with contextlib.suppress(OSError):
                peer.hang_up()
            thread.join(timeout=PATIENCE)
        assert not self.failures


def answering(body: Any, *, status: int = 200, **headers: str) -> Script:
    """Return a script that answers everything alike."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def script(peer: Peer, _: Asked) -> None:
        peer.answer(status, content, **headers)

    return script


def wait_logged(caplog: pytest.LogCaptureFixture, **wanted: str) -> dict[str, Any]:
    """Return the first line of the log with the wanted fields, once there is one.

    A gateway writes it after the answer, which may be read before.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for record in list(caplog.records):
            line: dict[str, Any] = record.__dict__.get("fields", {})
            if wanted.items() <= line.items():
                return line
        time.sleep(0.005)
    raise AssertionError(f"{wanted} was not logged")
