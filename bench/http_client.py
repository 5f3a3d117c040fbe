"""One kept-alive HTTP connection, timed from the first byte sent to the last one read."""

from __future__ import annotations

import http.client
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

JSON = {"content-type": "application/json"}
_PATIENCE_SECONDS = 600


@dataclass(frozen=True)
class Reply:
    """An answer's status and bytes, and the seconds that it took."""

    status: int
    body: bytes
    seconds: float


def answers(port: int, path: str) -> bool:
    """Tell whether a server on this machine answers `GET path` with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Connection:
    """A connection to a server on this machine; it costs a fraction of a millisecond a request."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_SECONDS)

    def post(self, path: str, body: bytes) -> Reply:
        """Send JSON and return the whole answer."""
        return self.ask("POST", path, body, JSON)

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send a request and return the whole answer."""
        self._reconnect_if_closed()
        start = time.perf_counter()
        self._connection.request(method, path, body, headers)
        return self._read(start)

    def leave(
        self, path: str, body: bytes, headers: Mapping[str, str], *, after_seconds: float
    ) -> Reply | None:
        """Send a request, wait, and hang up; return the answer if it began before that."""
        self._reconnect_if_closed()
        start = time.perf_counter()
        self._connection.request("POST", path, body, headers)
        if select.select([self._connection.sock], [], [], after_seconds)[0]:
            return self._read(start)
        self._connection.close()
        return None

    def leave_in_body(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request but for the last byte of its body, and hang up."""
        self._reconnect_if_closed()
        length = {"content-length": str(len(body))}
        self._connection.request("POST", path, body[:-1], {**headers, **length})
        self._connection.close()

    def _read(self, start: float) -> Reply:
        response = self._connection.getresponse()
        data = response.read()
        return Reply(response.status, data, time.perf_counter() - start)

    def _reconnect_if_closed(self) -> None:
        """Take a new connection, before the clock runs, where the server has hung up on us."""
        if self._connection.sock and select.select([self._connection.sock], [], [], 0)[0]:
            self._connection.close()
        if self._connection.sock is None:
            self._connection.connect()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
