"""Speaks to the adapter below an HTTP client: any bytes out, answers in, and what is documented."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from tests.adapter_process import PATIENCE, ROOT

ERRORS = ROOT / "docs" / "errors.md"
_ROW = re.compile(r"^\| `(?P<code>\w+)` \| (?P<status>\d{3}) \| (?P<retryable>yes|no) \|", re.M)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """A TCP connection to the adapter."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._reader = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, *, has_body: bool = True) -> Answer:
        """Read the next answer; an answer of a status below 200 is one too."""
        line = self._reader.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        status = int(line.split()[1])
        headers = {}
        while (line := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", "0")) if has_body else 0
        return Answer(status, headers, self._reader.read(length))

    def is_closed_by_adapter(self) -> bool:
        """Wait for more bytes, or for their end."""
        return self._reader.read(1) == b""

    def close(self) -> None:
        self._reader.close()
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def from_httpx(response: httpx.Response) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.content)


def documented_errors() -> dict[str, tuple[int, bool]]:
    """Return the status and the retryability of each code in docs/errors.md."""
    return {
        row["code"]: (int(row["status"]), row["retryable"] == "yes")
        for row in _ROW.finditer(ERRORS.read_text())
    }


def check_error(answer: Answer) -> dict[str, Any]:
    """Check that `answer` is an error as docs/errors.md describes them, and return its body."""
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = json.loads(answer.body)
    assert error.keys() == {"error", "code", "retryable", "field", "request_id"}
    assert documented_errors()[error["code"]] == (answer.status, error["retryable"])
    assert isinstance(error["error"], str)
    assert error["error"]
    assert error["field"] is None or isinstance(error["field"], str)
    assert error["request_id"] == answer.headers["x-request-id"]
    return error


def check_system_one_error(answer: Answer) -> dict[str, Any]:
    """Check that `answer` is an error as docs/errors.md describes System One's; return its body."""
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = json.loads(answer.body)
    assert error.keys() == {"detail", "x_retryable", "x_request_id"}
    assert error["x_request_id"] == answer.headers["x-request-id"]
    assert error["x_request_id"] == answer.headers["x-typesafe-request-id"]
    detail = error["detail"]
    if answer.status == 422:
        assert [item.keys() for item in detail] == [{"loc", "msg", "type"}]
        assert detail[0]["msg"]
        status, retryable = documented_errors()[detail[0]["type"]]
        assert (status, retryable) == (400, error["x_retryable"])
    else:
        assert detail.keys() == {"error_type", "message", "x_field"}
        assert detail["message"]
        expected = documented_errors()[detail["error_type"]]
        assert expected == (answer.status, error["x_retryable"])
    assert ("retry-after" in answer.headers) == (answer.status == 503)
    return error
