"""Asks labelled examples of an endpoint, keeps every answer, and goes on where it was interrupted.

One request holds one decision, so that what is timed is a decision. They are asked in the order of
the data, one at a time unless told otherwise; what got no answer before is asked again last.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ballot.decision import Decision, Scoring
from ballot.errors import (
    AccessDenied,
    BallotError,
    DeadlineExceeded,
    EndpointNotFound,
    InvalidAnswer,
    InvalidRequest,
    TransportFailed,
    Unavailable,
)
from ballot.quality.examples import Example
from ballot.quality.runs import Record, Run, Settings, load_run, open_run
from ballot.results import Result

# No answer came of it, which may be the endpoint's fault or the example's: where it goes on like
# this it is the endpoint's, and the run stops.
_UNANSWERED = (DeadlineExceeded, InvalidAnswer, TransportFailed, Unavailable)
_MOST_UNANSWERED_IN_A_ROW = 3
# What these refuse is not the example: every other one would be refused too.
_REFUSED = (AccessDenied, EndpointNotFound)
_REFUSED_STATUSES = frozenset({404, 405, 415})
_SCORING = "scoring"


class Decider(Protocol):
    """Whom to ask, from several threads at once: `ballot.Ballot` is one."""

    def decide(self, decision: Decision, *, scoring: Scoring | None = None) -> Result:
        """Return the probabilities of a decision's options, or raise BallotError."""


class Watcher(Protocol):
    """Is told how far a run is; always from the same thread."""

    def begin(self, *, total: int, done: int) -> None:
        """Of `total` examples `done` were answered before."""

    def advance(self, error: BallotError | None) -> None:
        """One more is answered, or got this error."""


def evaluate(
    examples: Sequence[Example],
    client: Decider,
    *,
    folder: Path,
    settings: Settings,
    watcher: Watcher,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Ask what is not answered yet, and return the finished run.

    An error that is about an example is kept as the example's failure. `clock` gives seconds, for
    `client_seconds`.

    Raises:
        BallotError: the endpoint refuses or does not answer; what it answered is kept, and the same
            call goes on with the rest. An example that got no answer before does not end a run
            that has answers.
        RunError: the folder is not this run's, or another model answers than before.
        OSError: an answer cannot be written.
    """
    with open_run(folder, settings) as record:
        # What may be at fault itself comes last, so that it keeps nothing else from being asked.
        missing = sorted(
            set(range(len(examples))) - record.done,
            key=lambda index: (index in record.unanswered, index),
        )
        watcher.begin(total=len(examples), done=len(examples) - len(missing))
        crew = _Crew(examples, client, record, settings.scoring, clock)
        with closing(crew.ask(missing, hands=settings.concurrency)) as outcomes:
            for error in outcomes:
                watcher.advance(error)
    return load_run(folder)


@dataclass(frozen=True)
class _Stop:
    """What ended a thread's work before its time."""

    error: Exception


@dataclass(frozen=True)
class _Outcome:
    """What came of an example: the error that it got, if it got one."""

    index: int
    error: BallotError | None


class _Patience:
    """Tells an endpoint that does not answer from examples that get no answer."""

    def __init__(self, record: Record) -> None:
        self._unanswered_before = record.unanswered
        # A first answer has to come before an unanswered example may be the example's fault.
        self._has_answered = bool(record.done)
        self._in_a_row = 0

    def ends_with(self, outcome: _Outcome) -> bool:
        """Return whether, after this outcome too, it is the endpoint that does not answer."""
        if not isinstance(outcome.error, _UNANSWERED):
            self._has_answered, self._in_a_row = True, 0
            return False
        if not self._has_answered:
            return True
        # Once more without an answer says nothing new of the endpoint.
        if outcome.index not in self._unanswered_before:
            self._in_a_row += 1
        return self._in_a_row >= _MOST_UNANSWERED_IN_A_ROW


class _Crew:
    """Threads that ask one example after another, and keep each answer before they ask the next."""

    def __init__(
        self,
        examples: Sequence[Example],
        client: Decider,
        record: Record,
        scoring: Scoring,
        clock: Callable[[], float],
    ) -> None:
        self._examples, self._client, self._record = examples, client, record
        self._scoring = None if scoring == Scoring() else scoring
        self._clock = clock
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome | _Stop] = queue.SimpleQueue()
        self._stopped = threading.Event()

    def ask(
        self, indexes: Sequence[int], *, hands: int
    ) -> Generator[BallotError | None, None, None]:
        """Yield, for each example as it comes, the error that it got, or None.

        Closing the iterator, or an error out of it, lets no more be asked; what was asked already
        is left to itself.
        """
        for index in indexes:
            self._waiting.put(index)
        for _ in range(min(hands, len(indexes))):
            threading.Thread(target=self._work, daemon=True).start()
        try:
            patience = _Patience(self._record)
            for _ in indexes:
                outcome = self._outcomes.get()
                if isinstance(outcome, _Stop):
                    raise outcome.error
                if patience.ends_with(outcome) and outcome.error is not None:
                    raise outcome.error
                yield outcome.error
        finally:
            self._stopped.set()

    def _work(self) -> None:
        try:
            while not self._stopped.is_set():
                index = self._waiting.get_nowait()
                self._outcomes.put(_Outcome(index, self._ask(index)))
        except queue.Empty:
            pass
        except Exception as error:
            self._outcomes.put(_Stop(error))

    def _ask(self, index: int) -> BallotError | None:
        """Ask an example and keep what comes; return the error that it got, if it got one."""
        example = self._examples[index]
        begun = self._clock()
        try:
            result = self._client.decide(example.decision, scoring=self._scoring)
        except BallotError as error:
            if _is_refusal(error):
                raise
            seconds = self._clock() - begun
            retryable = isinstance(error, _UNANSWERED)
            self._record.keep_error(index, example, error, seconds, retryable=retryable)
            return error
        self._record.keep_result(index, example, result, self._clock() - begun)
        return None


def _is_refusal(error: BallotError) -> bool:
    """Return whether the endpoint refuses whatever is asked of it."""
    if isinstance(error, InvalidRequest):
        return error.status in _REFUSED_STATUSES or (error.field or "").startswith(_SCORING)
    return isinstance(error, _REFUSED)
