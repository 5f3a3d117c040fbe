"""When to try again, and how long to wait first: decided without sleeping or sending anything."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ballot.errors import BallotError, DeadlineExceeded, TransportFailed, Unavailable

_TIMED_OUT = 408
_MOST_DOUBLINGS = 60


@dataclass(frozen=True)
class RetryPolicy:
    """How often to try in all, within how many seconds, waiting how long in between.

    Before attempt n + 1 a call waits a random time up to `base_seconds` * 2 ** (n - 1), but never
    more than up to `cap_seconds` ("full jitter": callers that failed together do not come back
    together), after what `Retry-After` asks for. `budget_seconds` bounds the whole call: a wait
    that would pass it is not begun, and the last attempt's time-out is what is left of it.
    """

    attempts: int = 5
    budget_seconds: float = 120.0
    base_seconds: float = 0.5
    cap_seconds: float = 8.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {self.attempts}")
        for name in ("budget_seconds", "base_seconds", "cap_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be more than 0 and finite")

    def backoff(self, attempt: int, draw: float) -> float:
        """Return the seconds to wait after attempt 1, 2, ... failed; `draw` is from 0 to 1."""
        doubled: float = self.base_seconds * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS)
        return draw * min(self.cap_seconds, doubled)


@dataclass(frozen=True)
class Clock:
    """Time and chance; a test brings its own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random


class Attempts:
    """The attempts of one call: counts them, and says when and for how long the next one may be."""

    def __init__(self, policy: RetryPolicy, clock: Clock) -> None:
        self._policy, self._clock = policy, clock
        self._deadline = clock.now() + policy.budget_seconds
        self._failed = 0
        self._last: BallotError | None = None

    def time_out(self) -> float:
        """Return the seconds that the next attempt may take: what is left of the budget.

        Raises:
            DeadlineExceeded: nothing is.
        """
        left = self._left()
        if left <= 0:
            raise self._spent()
        return left

    def wait_after(self, error: BallotError) -> float:
        """Return the seconds to wait before trying again.

        Raises:
            BallotError: `error` itself, where trying again is no use or no more attempts are left.
            DeadlineExceeded: the budget does not reach to another attempt.
        """
        self._failed += 1
        self._last = error
        if not is_transient(error) or self._failed >= self._policy.attempts:
            raise error
        wait = self._policy.backoff(self._failed, self._clock.draw()) + _asked_wait(error)
        if wait >= self._left():
            raise self._spent() from error
        return wait

    def _left(self) -> float:
        return self._deadline - self._clock.now()

    def _spent(self) -> DeadlineExceeded:
        last = self._last
        error = DeadlineExceeded(
            f"no answer within {self._policy.budget_seconds:g} s; failed attempts: {self._failed}"
            + (f", the last: {last}" if last else ""),
            code="budget_spent",
            status=last.status if last else None,
            request_id=last.request_id if last else None,
            retryable=True,
        )
        error.last = last
        return error


def is_transient(error: BallotError) -> bool:
    """Return whether the same request may well succeed a moment later.

    A failed scoring is not tried again here, although its caller may: after a few in a row the
    endpoint stops serving everybody.
    """
    passing = isinstance(error, (Unavailable, TransportFailed)) or error.status == _TIMED_OUT
    return passing and error.retryable


def _asked_wait(error: BallotError) -> float:
    asked = error.retry_after if isinstance(error, Unavailable) else None
    return asked or 0.0
