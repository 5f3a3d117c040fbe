"""Answers an input line by line: a few requests at a time, each kept in its turn."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass

from ballot.batch.answers import Answer
from ballot.batch.asking import Asker
from ballot.batch.lines import Line
from ballot.calls import MAX_BODY_BYTES

# SageMaker gives an answer 60 seconds; the next request may well take some times as long.
_WANTED_SECONDS = 10.0
_MOST_LINES = 512
_MOST_GROWTH = 4


@dataclass(frozen=True)
class _Answered:
    """What came of a request, and the seconds that it took."""

    answers: Sequence[Answer]
    seconds: float


def run(
    lines: Iterator[Line],
    asker: Asker,
    *,
    hands: int,
    keep: Callable[[Sequence[Answer]], None],
) -> None:
    """Answer lines, with `hands` requests at a time.

    `keep` is given the answers, in the order of the lines: errors too, but none of them before the
    first answer, for until then they may be the server's. What is asked and not kept yet when this
    ends early is left to itself: its lines are asked again by the next run.

    Raises:
        BallotError: the endpoint does not answer, or the files are not what they were.
        OSError: the output cannot be written.
    """
    pace = _Pace()
    requests = _Requests(lines, pace)
    waiting: list[Answer] = []
    with closing(_Crew(hands, asker)) as crew:
        under_way: deque[Future[_Answered]] = deque()
        while True:
            # Twice as many, so that no hand is idle while the first of them is waited for.
            while len(under_way) < 2 * hands and (taken := requests.take()):
                under_way.append(crew.ask(taken))
            if under_way:
                answered = under_way.popleft().result()
                pace.learn(len(answered.answers), answered.seconds)
                waiting.extend(answered.answers)
            if waiting and (asker.has_answer or not under_way):
                keep(waiting)
                waiting = []
            elif not under_way:
                return


class _Pace:
    """How many lines to ask in a request, by how long the last ones took."""

    def __init__(self) -> None:
        self.lines = 1

    def learn(self, lines: int, seconds: float) -> None:
        """Take note of an answer to so many lines."""
        fitting = int(lines * _WANTED_SECONDS / max(seconds, 0.001))
        self.lines = max(1, min(fitting, _MOST_GROWTH * lines, _MOST_LINES))


class _Requests:
    """Cuts the input into requests: as many lines as the pace has, in as many bytes as fit."""

    def __init__(self, lines: Iterator[Line], pace: _Pace) -> None:
        self._lines, self._pace = lines, pace
        self._next = next(lines, None)

    def take(self) -> list[Line]:
        """Return the lines of the next request; none at the end of the input."""
        taken: list[Line] = []
        left = MAX_BODY_BYTES
        while (line := self._next) is not None and len(taken) < self._pace.lines:
            left -= len(line.content) + 1
            if taken and left < 0:
                break
            taken.append(line)
            self._next = next(self._lines, None)
        return taken


class _Crew:
    """Threads that ask; an interruption does not wait for them."""

    def __init__(self, hands: int, asker: Asker) -> None:
        self._hands, self._asker = hands, asker
        self._tasks: queue.SimpleQueue[tuple[Sequence[Line], Future[_Answered]] | None] = (
            queue.SimpleQueue()
        )
        for _ in range(hands):
            threading.Thread(target=self._work, daemon=True).start()

    def ask(self, lines: Sequence[Line]) -> Future[_Answered]:
        """Have lines asked once a thread is free."""
        future: Future[_Answered] = Future()
        self._tasks.put((lines, future))
        return future

    def close(self) -> None:
        """Let each thread end with what it is at; what waits is not asked."""
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for _ in range(self._hands):
            self._tasks.put(None)

    def _work(self) -> None:
        while task := self._tasks.get():
            lines, future = task
            begun = time.perf_counter()
            try:
                answers = self._asker.ask(lines)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(_Answered(answers, time.perf_counter() - begun))
