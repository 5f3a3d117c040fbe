"""JSON Lines on `/invocations`: every line is a body of its own, and gets a line of its own.

What a line gets, it would get alone: the same answer, or the same error, which also says which
line it stands for. A fault in one line is no fault of another's.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Protocol

from adapter import native
from adapter.admission import Permit
from adapter.errors import InvalidRequest
from adapter.faults import told
from adapter.pipeline import Answered, Asked, Pipeline, Recognize
from adapter.usage import Usage

MEDIA_TYPE = "application/jsonlines"
MEDIA_TYPES = (MEDIA_TYPE, "application/x-ndjson", "application/jsonl")
# How many lines are worked on beside the one whose answer is due: while the worker scores that,
# one more waits for it and another is being prepared. More would only make other callers wait.
AHEAD = 2
_BLANK = b" \t\r"


class Observer(Protocol):
    """Who is told how each line ended; `adapter.metrics.Metrics` is one."""

    def line(self, outcome: str) -> None: ...


class Lines:
    """The lines of one request; `lines`, `failed` and `usage` count those that are answered."""

    def __init__(
        self,
        body: bytes,
        *,
        pipeline: Pipeline,
        permit: Permit,
        recognize: Recognize,
        request_id: str,
        observer: Observer,
        ahead: int = AHEAD,
    ) -> None:
        self._body = body
        self._pipeline = pipeline
        self._permit = permit
        self._recognize = recognize
        self._request_id = request_id
        self._observer = observer
        self._ahead = ahead
        self.lines = 0
        self.failed = 0
        self.usage = Usage()

    async def answers(self) -> AsyncGenerator[bytes, None]:
        """Yield one line for each line of the body, in their order.

        No more than `ahead` are worked on beyond the next: memory is bounded, and whoever stops
        to read stops the work.
        """
        pending: deque[asyncio.Task[bytes]] = deque()
        before: asyncio.Task[bytes] | None = None
        try:
            for number, line in enumerate(split(self._body), 1):
                before = self._begin(number, line, before)
                pending.append(before)
                if len(pending) > self._ahead:
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()

    def _begin(
        self, number: int, line: bytes, before: asyncio.Task[bytes] | None
    ) -> asyncio.Task[bytes]:
        """Work on a line; its time runs from when the one before it is answered."""
        permit = self._permit.line()
        if before is None or before.done():
            permit.begin()
        else:
            before.add_done_callback(lambda _: permit.begin())
        return asyncio.create_task(self._answer(number, line, permit))

    async def _answer(self, number: int, line: bytes, permit: Permit) -> bytes:
        asked = Asked(line, self._recognize, native.WIRE)
        try:
            answered = await self._score(asked, permit)
            written = _written(answered.body)
        except Exception as error:
            return self._failure(number, asked, error)
        self.usage += answered.usage
        self._count("ok")
        return written

    async def _score(self, asked: Asked, permit: Permit) -> Answered:
        if not asked.body.strip(_BLANK):
            raise InvalidRequest("the line is empty", code="empty_line")
        prepared = await self._pipeline.prepare(asked, permit)
        return await self._pipeline.score(prepared, permit)

    def _failure(self, number: int, asked: Asked, error: Exception) -> bytes:
        refusal = told(error, self._request_id)
        body = {**asked.wire.render_error(refusal, self._request_id).body, "line": number}
        identifier = native.readable_id(asked.value)
        if identifier is not None:
            body["id"] = identifier
        self.failed += 1
        self._count(refusal.code)
        return _written(body)

    def _count(self, outcome: str) -> None:
        self.lines += 1
        self._observer.line(outcome)


def _written(body: dict[str, Any]) -> bytes:
    # ASCII: some readers take U+2028 and its like for the end of a line.
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def split(body: bytes) -> Iterator[bytes]:
    """Yield the lines of `body`, without their line feeds; one at its end begins no line."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        if end < 0:
            end = len(body)
        yield body[start:end]
        start = end + 1
