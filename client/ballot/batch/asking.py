"""Asks lines, and gets an answer for each of them, or finds out that nobody answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ballot.batch.answers import Answer, own_error, read_answer
from ballot.batch.lines import Line
from ballot.calls import INVOCATIONS
from ballot.errors import (
    BallotError,
    DeadlineExceeded,
    InvalidAnswer,
    InvalidRequest,
    TransportFailed,
    Unavailable,
    error_from_answer,
)
from ballot.retry import Attempts, Clock, RetryPolicy
from ballot.transport import Reply

# Once somebody has answered, time alone bounds the attempts: nobody waits at a screen.
_MOST_ATTEMPTS = 1000
# No answer to a line may be the line's fault; to several in a row it is the endpoint's.
_MOST_UNANSWERED_IN_A_ROW = 3
# A server that refused each of its first lines, alone and whole, knows no such requests.
_MOST_REFUSED_AT_FIRST = 3
# What a request is refused with for what is in it.
_REFUSED_CONTENT = frozenset({400, 413, 422})
_TOO_LARGE = 413
_GATEWAY_TIME_OUT = 504


class LinesTransport(Protocol):
    """Sends JSON lines to a path of the endpoint, once; `ballot.transport` has two such."""

    def send(self, path: str, body: bytes, *, timeout: float) -> Reply:
        """Return the whole answer, or raise BallotError."""


class Asker:
    """Asks the lines of one request after another; threads may share it.

    A request that is too large or too slow is asked in halves. What a line is refused with becomes
    its answer; lines whose error passes are asked again, as `policy` has it.
    """

    def __init__(
        self, transport: LinesTransport, policy: RetryPolicy, clock: Clock | None = None
    ) -> None:
        self._transport, self._policy, self._clock = transport, policy, clock or Clock()
        self._patience = _Patience()

    @property
    def has_answer(self) -> bool:
        """Whether any request has been answered yet, be it with errors of its lines."""
        return self._patience.has_answer

    def ask(self, lines: Sequence[Line]) -> list[Answer]:
        """Return the answers to the lines, in their order.

        Raises:
            BallotError: it is the endpoint that cannot or will not answer.
        """
        answers = dict(zip(lines, self._halved(lines), strict=True))
        attempts = self._attempts()
        while left := [line for line in lines if answers[line].passing]:
            refused = answers[left[0]]
            try:
                wait = attempts.wait_after(
                    Unavailable(refused.message, code=refused.code or "", retryable=True)
                )
            except BallotError:
                break  # they keep the errors that they have
            self._clock.sleep(wait)
            answers.update(zip(left, self._halved(left), strict=True))
        return [answers[line] for line in lines]

    def _halved(self, lines: Sequence[Line]) -> list[Answer]:
        """Return the answers to lines that go in one request, or in more where one will not do."""
        try:
            return self._send(lines)
        except BallotError as error:
            if not (_is_too_slow(error) or _is_content_refused(error)):
                raise
            if len(lines) == 1:
                return [self._unanswered(lines[0], error)]
        half = len(lines) // 2
        return [*self._halved(lines[:half]), *self._halved(lines[half:])]

    def _unanswered(self, line: Line, error: BallotError) -> Answer:
        allowed = (
            self._patience.allows() if _is_too_slow(error) else self._patience.allows_refusal(error)
        )
        if not allowed:
            raise error
        return own_error(error, line)

    def _send(self, lines: Sequence[Line]) -> list[Answer]:
        body = b"".join(line.content + b"\n" for line in lines)
        attempts = self._attempts()
        while True:
            timeout = attempts.time_out()
            try:
                reply = self._transport.send(INVOCATIONS, body, timeout=timeout)
                answers = _read(reply, lines)
            except BallotError as error:
                if len(lines) > 1 and _is_too_slow(error):
                    raise
                wait = attempts.wait_after(error)
            else:
                self._patience.renew()
                return answers
            self._clock.sleep(wait)

    def _attempts(self) -> Attempts:
        policy = self._policy
        if self._patience.has_answer:
            policy = replace(policy, attempts=_MOST_ATTEMPTS)
        return Attempts(policy, self._clock)


class _Patience:
    """Tells an endpoint that does not answer from lines that get no answer."""

    def __init__(self) -> None:
        self.has_answer = False
        self._in_a_row = self._refused = 0
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Take note of an answer."""
        with self._lock:
            self.has_answer, self._in_a_row = True, 0

    def allows(self) -> bool:
        """Take note of a line that got no answer; return whether that may be the line's fault."""
        with self._lock:
            self._in_a_row += 1
            return self.has_answer and self._in_a_row < _MOST_UNANSWERED_IN_A_ROW

    def allows_refusal(self, error: BallotError) -> bool:
        """Take note of a line that was refused alone; return whether that may be its own fault."""
        with self._lock:
            self._refused += error.status != _TOO_LARGE
            return self.has_answer or self._refused < _MOST_REFUSED_AT_FIRST


def _read(reply: Reply, lines: Sequence[Line]) -> list[Answer]:
    if not 200 <= reply.status < 300:
        raise error_from_answer(reply.status, reply.headers, reply.body)
    *whole, torn = reply.body.split(b"\n")
    if torn or len(whole) < len(lines):
        raise TransportFailed(
            f"the answer broke off after {len(whole)} of {len(lines)} lines",
            code="broken_stream",
            retryable=True,
        )
    if len(whole) > len(lines):
        raise InvalidAnswer(f"{len(lines)} lines got {len(whole)} answers", code="invalid_answer")
    return [
        read_answer(answer, place=place, number=line.number)
        for place, (answer, line) in enumerate(zip(whole, lines, strict=True), start=1)
    ]


def _is_too_slow(error: BallotError) -> bool:
    """Return whether there was no answer in the time that there was for one."""
    if isinstance(error, DeadlineExceeded):
        return error.last is not None and _is_too_slow(error.last)
    return error.status == _GATEWAY_TIME_OUT or error.code == "timed_out"


def _is_content_refused(error: BallotError) -> bool:
    return isinstance(error, InvalidRequest) and error.status in _REFUSED_CONTENT
