"""Calls of the endpoints: a bounded number at once, and one for all who ask the same.

SDKs give up on a slow answer, hang up and send the same request again. The call that they gave up
on goes on, as nothing can stop SageMaker, and the retry is answered with its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

Answer = TypeVar("Answer")
# The TypeSafe SDK waits at most five seconds between two tries.
UNHEARD_SECONDS = 10.0


@dataclass(eq=False)
class _Call(Generic[Answer]):
    task: asyncio.Task[Answer]
    callers: int = 0
    is_started: bool = False


class Calls(Generic[Answer]):
    """The calls that run and wait, by what they ask."""

    def __init__(self, limit: int, *, unheard_seconds: float = UNHEARD_SECONDS) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._unheard_seconds = unheard_seconds
        self._calls: dict[bytes, list[_Call[Answer]]] = {}

    @property
    def slot(self) -> AbstractAsyncContextManager[None]:
        """A call's permission to run: entering it waits for one that is free."""
        return self._slots

    async def share(
        self, key: bytes, function: Callable[[], Awaitable[Answer]], *, only_left: bool = False
    ) -> tuple[Answer, bool]:
        """Return what the call for `key` answers, and whether another request had begun it.

        With `only_left` it joins none but a call that all its callers have left, as a retry does:
        two that ask the same at once get an answer each. A caller that is cancelled leaves; a call
        that all have left is dropped, unless it has started: then its answer is kept for
        `unheard_seconds`, for who asks again.
        """
        running = self._calls.get(key, ())
        call = next((one for one in running if not (only_left and one.callers)), None)
        is_shared = call is not None
        if call is None:
            call = self._begin(key, function)
        call.callers += 1
        try:
            return await asyncio.shield(call.task), is_shared
        finally:
            call.callers -= 1
            if call.task.done():
                self._forget(key, call)
            elif call.callers == 0 and not call.is_started:
                self._forget(key, call)
                call.task.cancel()

    def _begin(self, key: bytes, function: Callable[[], Awaitable[Answer]]) -> _Call[Answer]:
        async def run() -> Answer:
            async with self._slots:
                call.is_started = True
                return await function()

        call = _Call(asyncio.ensure_future(run()))
        self._calls.setdefault(key, []).append(call)
        call.task.add_done_callback(lambda task: self._ended(key, call))
        return call

    def _ended(self, key: bytes, call: _Call[Answer]) -> None:
        if call.task.cancelled() or call.task.exception() is not None or call.callers:
            # An error is not worth keeping, and those who wait forget the call themselves.
            self._forget(key, call)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(self._unheard_seconds, self._forget, key, call)

    def _forget(self, key: bytes, call: _Call[Answer]) -> None:
        running = self._calls.get(key, [])
        if call in running:
            running.remove(call)
        if not running:
            self._calls.pop(key, None)
