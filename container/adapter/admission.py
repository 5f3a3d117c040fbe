"""Who gets in, in which order, and who is told to come back: a bounded queue before one worker.

A request takes a `Permit` before its body is read, and gives it back when its answer is ready.
The permits bound memory and waiting; the worker takes requests in the order in which their
prompts were ready, but for what `schedule` says. All of `Admission` runs on the event loop but
`work`, which is the worker's: the two meet in a queue of jobs and in each job's future.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Protocol

from adapter.engine import Cancelled, Forward
from adapter.errors import ModelChanged, ScoringError, ScoringFailed, Unavailable
from adapter.lanes import Lanes
from adapter.lifecycle import Lifecycle
from adapter.schedule import Line
from adapter.scorer import Scored, score
from adapter.tokens import Encoded

# How fast the estimate of the scoring speed follows what is measured.
RATE_WEIGHT = 0.2
# After how many time-outs of a request the worker hangs: a decode is given up after one, as soon as
# llama.cpp comes back from the batch that it is in.
HANGING_TIMEOUTS = 2


class Scorer(Protocol):
    """What the worker needs of an engine; `adapter.engine.Engine` is one."""

    @property
    def lanes(self) -> Lanes: ...

    def forward_together(
        self, several: Sequence[Encoded], is_cancelled: Callable[[], bool]
    ) -> list[Forward]: ...

    def cached_tokens(self, encoded: Encoded) -> int: ...

    def at_stake(self, encoded: Encoded, others: Sequence[Encoded]) -> int: ...


class Observer(Protocol):
    """Who is told what the worker does; `adapter.metrics.Metrics` is one."""

    def waited(self, seconds: float) -> None: ...

    def forwarded(self, forward: Forward) -> None: ...


@dataclass(frozen=True)
class Answer:
    """The scored decisions of one request, and the seconds it waited and was decoded."""

    scored: tuple[Scored, ...]
    queue_seconds: float
    forward_seconds: float


@dataclass(eq=False)
class _Job:
    encoded: tuple[Encoded, ...]
    permit: Permit
    submitted: float
    overtaken: int = 0
    result: Future[Answer] = field(default_factory=Future)
    abandoned: threading.Event = field(default_factory=threading.Event)

    @property
    def deadline(self) -> float:
        return self.permit.deadline

    @property
    def input_tokens(self) -> int:
        return sum(item.input_tokens for item in self.encoded)

    def settle(self, outcome: Answer | Exception) -> None:
        # The other side may have settled or cancelled it first, and then that is the answer.
        with contextlib.suppress(InvalidStateError):
            if isinstance(outcome, Answer):
                self.result.set_result(outcome)
            else:
                self.result.set_exception(outcome)


@dataclass(eq=False)
class _Turn:
    """A job that is being scored: when that began, and its scores so far by their index."""

    job: _Job
    started: float
    scored: dict[int, Scored] = field(default_factory=dict)


class Permit:
    """The right of one request, or of one line of it, to be worked on until its `deadline`.

    Only an `Admission` makes one, and `line` one more. It is for one `score` at a time.
    """

    def __init__(self, admission: Admission, deadline: float, *, is_line: bool = False) -> None:
        self._admission = admission
        self._job: _Job | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.deadline = deadline
        self.is_line = is_line

    async def score(self, encoded: tuple[Encoded, ...]) -> Answer:
        """Queue the decisions and wait for their scores; a cancelled caller leaves the queue.

        Raises:
            Unavailable: `busy` when the wait would pass the deadline, `deadline_exceeded` when
                it did, `draining` or `worker_failed` when the worker stopped.
            ScoringFailed: llama.cpp failed on one of the decisions.
        """
        return await self._admission.run(encoded, self)

    def arriving(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait, in an `async with` block, for the request's body.

        Raises:
            Unavailable: `busy`, when it took its time, and its place was needed for another;
                `draining` or `worker_failed`, when there will be no more scoring.
        """
        return self._admission.arriving()

    def sending(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait, in an `async with` block, for the caller to take a part of the answer.

        Raises:
            Unavailable: `busy`, when it took its time, and its place was needed for another.
        """
        return self._admission.sending()

    def line(self) -> Permit:
        """Return the right of one line of the request, whose time runs only from `begin` on.

        It is never `busy`: the request has its place, and its other lines are not in the way.
        """
        return Permit(self._admission, math.inf, is_line=True)

    def begin(self) -> None:
        """Let the time of a line run, from now."""
        self.deadline = self._admission.deadline()
        if self._job is not None:
            self._end_in_time(self._job)

    @contextlib.contextmanager
    def watching(self, job: _Job) -> Iterator[None]:
        """Settle `job` when the time has run out, whatever the worker does meanwhile."""
        self._job = job
        self._end_in_time(job)
        try:
            yield
        finally:
            self._job = None
            if self._timer is not None:
                self._timer.cancel()

    def _end_in_time(self, job: _Job) -> None:
        if self.deadline < math.inf:
            seconds = self.deadline - self._admission.now()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, job.settle, _out_of_time())

    def require_open(self) -> None:
        """Do nothing while there is scoring. May be called from any thread.

        Raises:
            Unavailable: `draining` or `worker_failed`, when there will be no more.
        """
        self._admission.require_open()


class Admission:
    """Bounds the requests in the adapter and hands their decisions to the worker."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        observer: Observer,
        *,
        max_queue: int,
        timeout_seconds: float,
        grace_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lifecycle = lifecycle
        self._observer = observer
        self._max_queue = max_queue
        self._timeout_seconds = timeout_seconds
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._admitted = 0
        # Since when each body that is not there yet is waited for, the first first; and each caller
        # who has yet to take a part of an answer.
        self._arriving: dict[asyncio.Timeout, float] = {}
        self._sending: dict[asyncio.Timeout, float] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._unfinished: set[_Job] = set()
        self._tokens_per_second: float | None = None
        self._decoding_since: float | None = None
        self._refusal: Exception | None = None

    @property
    def admitted(self) -> int:
        """How many requests hold a permit."""
        return self._admitted

    @property
    def waiting(self) -> int:
        """How many requests wait behind the one that is being scored."""
        return max(0, self._admitted - 1)

    @property
    def is_hanging(self) -> bool:
        """Whether the worker has been in one decode for longer than any decode may take."""
        since = self._decoding_since
        return (
            since is not None and self._clock() - since > HANGING_TIMEOUTS * self._timeout_seconds
        )

    @contextlib.contextmanager
    def enter(self) -> Iterator[Permit]:
        """Take a permit, for the length of a `with` block.

        When all are taken, a request gives way whose body has been on its way for longer than
        `grace_seconds`, or whose caller has not read on for that long: whoever dribbles keeps
        nobody out.

        Raises:
            Unavailable: `loading`, `draining`, `worker_failed`, or `busy` when the queue is full.
        """
        self._lifecycle.require_ready()
        if self._admitted > self._max_queue and not self._make_room():
            raise self._busy(f"{self._admitted} requests are being served, which is the limit")
        self._admitted += 1
        try:
            yield Permit(self, self.deadline())
        finally:
            self._admitted -= 1

    @contextlib.asynccontextmanager
    async def arriving(self) -> AsyncIterator[None]:
        """Do what `Permit.arriving` says."""
        try:
            async with self._giving_way(self._arriving):
                yield
        except TimeoutError:
            self.require_open()
            raise self._busy("the body was slow, and its place was needed for another") from None

    @contextlib.asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Do what `Permit.sending` says."""
        try:
            async with self._giving_way(self._sending):
                yield
        except TimeoutError:
            raise self._busy("the answer was read slowly, and its place was needed") from None

    @contextlib.asynccontextmanager
    async def _giving_way(self, places: dict[asyncio.Timeout, float]) -> AsyncIterator[None]:
        """Be one of `places`, and end with a `TimeoutError` when that is given up."""
        async with asyncio.timeout(None) as place:
            places[place] = self._clock()
            try:
                yield
            finally:
                places.pop(place, None)

    def _make_room(self) -> bool:
        """Give up the place whose caller is waited for longest; False when none is slow."""
        kinds = [places for places in (self._arriving, self._sending) if places]
        if not kinds:
            return False
        slowest = min(kinds, key=lambda places: next(iter(places.values())))
        if self._clock() - next(iter(slowest.values())) <= self._grace_seconds:
            return False
        _give_up_first(slowest)
        return True

    def now(self) -> float:
        """Return the time, by the clock of the deadlines."""
        return self._clock()

    def deadline(self) -> float:
        """Return when the time of a request that comes now will have run out."""
        return self._clock() + self._timeout_seconds

    def require_open(self) -> None:
        """Do what `Permit.require_open` says."""
        if self._refusal is not None:
            # One error for all: what each raise of it leaves behind would pile up.
            raise self._refusal.with_traceback(None)

    async def run(self, encoded: tuple[Encoded, ...], permit: Permit) -> Answer:
        """Do what `Permit.score` says."""
        self.require_open()
        now = self._clock()
        if now > permit.deadline:
            raise _out_of_time()
        if not permit.is_line and now + self._estimated_wait() > permit.deadline:
            raise self._busy("the requests ahead would take longer than this one may wait")
        job = _Job(encoded, permit, submitted=now)
        self._unfinished.add(job)
        self._jobs.put(job)
        try:
            with permit.watching(job):
                return await asyncio.wrap_future(job.result)
        finally:
            job.abandoned.set()
            self._unfinished.discard(job)

    def refuse_unfinished(self, error: Exception) -> None:
        """Answer every request that has no answer yet with `error`, also those still on their way.

        There is no way back: the worker is gone, or soon will be. The first `error` stays.
        """
        self._refusal = self._refusal or error
        for job in list(self._unfinished):
            job.abandoned.set()
            job.settle(self._refusal)
        while self._arriving:
            _give_up_first(self._arriving)

    def stop(self) -> None:
        """Let `work` return once it has worked off the queue."""
        self._jobs.put(None)

    def work(self, engine: Scorer) -> None:
        """Score jobs on the calling thread, one after another, until `stop`."""
        line: Line[_Job] = Line()
        is_open = True
        while is_open or line:
            is_open = self._fill(line, wait=not line) and is_open
            line.drop(lambda job: job.abandoned.is_set())
            if line:
                self._score(self._next(line, engine), engine)

    def _fill(self, line: Line[_Job], *, wait: bool) -> bool:
        """Move the jobs that have come into `line`; False once there will be no more."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get(block=wait)
                if job is None:
                    return False
                line.join(job)
                wait = False
        return True

    def _next(self, line: Line[_Job], engine: Scorer) -> list[_Job]:
        """Take the job whose turn it is, and those that can be scored in one decode with it."""
        rate = self._tokens_per_second
        job = line.take(
            now=self._clock(),
            at_stake=lambda job, others: _at_stake(engine, job, others),
            seconds=None if rate is None else lambda job: job.input_tokens / rate,
        )
        if len(job.encoded) > 1 or engine.lanes.count == 1:
            return [job]

        def may_join(company: Sequence[_Job], other: _Job) -> bool:
            together = [*job.encoded, *(joined.encoded[0] for joined in company), *other.encoded]
            return len(other.encoded) == 1 and engine.lanes.fit(together)

        return [job, *line.take_company(may_join)]

    def _score(self, jobs: Sequence[_Job], engine: Scorer) -> None:
        """Score all decisions of `jobs`, and settle each job as soon as its last one is scored."""
        turns = [_Turn(job, started=self._clock()) for job in jobs]
        for turn in turns:
            self._observer.waited(turn.started - turn.job.submitted)
        items = [(turn, index) for turn in turns for index in range(len(turn.job.encoded))]
        encoded = tuple(turn.job.encoded[index] for turn, index in items)
        for batch in engine.lanes.batches(encoded, grouped(encoded, engine.cached_tokens)):
            self._score_batch([items[item] for item in batch], engine)

    def _score_batch(self, items: Sequence[tuple[_Turn, int]], engine: Scorer) -> None:
        """Score decisions in one forward pass; those of jobs that are over by now are left out."""
        items = [(turn, index) for turn, index in items if not self._is_over(turn)]
        if not items:
            return
        encoded = [turn.job.encoded[index] for turn, index in items]
        try:
            forwards = self._forward(
                engine, encoded, lambda: all(self._is_over(turn) for turn, _ in items)
            )
        except Cancelled:
            return
        except ModelChanged:
            raise
        except Exception as error:
            if len(items) > 1:
                # What one prompt does to llama.cpp is not to fail those that stand beside it.
                for item in items:
                    self._score_batch([item], engine)
            else:
                self._fail(items[0][0], encoded[0], error)
            return
        for (turn, index), one, forward in zip(items, encoded, forwards, strict=True):
            self._observer.forwarded(forward)
            self._learn_rate(one.input_tokens / max(forward.seconds, 1e-9))
            self._scored(turn, index, one, forward)

    def _forward(
        self, engine: Scorer, encoded: Sequence[Encoded], is_cancelled: Callable[[], bool]
    ) -> list[Forward]:
        self._decoding_since = self._clock()
        try:
            return engine.forward_together(encoded, is_cancelled)
        finally:
            self._decoding_since = None

    def _is_over(self, turn: _Turn) -> bool:
        """Whether the turn needs no more decodes; it is settled when its time has run out."""
        if turn.job.abandoned.is_set():
            return True
        if self._clock() > turn.job.deadline:
            turn.job.settle(_out_of_time())
        return turn.job.result.done()

    def _fail(self, turn: _Turn, encoded: Encoded, error: Exception) -> None:
        self._lifecycle.scoring_failed(encoded.prompt_sha256)
        failed = ScoringFailed("this request could not be scored")
        failed.__cause__ = error
        turn.job.settle(failed)

    def _scored(self, turn: _Turn, index: int, encoded: Encoded, forward: Forward) -> None:
        try:
            turn.scored[index] = score(encoded, forward)
        except ScoringError as error:
            return self._fail(turn, encoded, error)
        if len(turn.scored) < len(turn.job.encoded):
            return None
        self._lifecycle.scored()
        scored = tuple(turn.scored[index] for index in range(len(turn.scored)))
        answer = Answer(
            scored,
            queue_seconds=turn.started - turn.job.submitted,
            forward_seconds=sum(item.forward_seconds for item in scored),
        )
        return turn.job.settle(answer)

    def _learn_rate(self, tokens_per_second: float) -> None:
        known = self._tokens_per_second or tokens_per_second
        self._tokens_per_second = known + RATE_WEIGHT * (tokens_per_second - known)

    def _estimated_wait(self) -> float:
        if self._tokens_per_second is None:
            return 0.0
        return sum(job.input_tokens for job in self._unfinished) / self._tokens_per_second

    def _busy(self, message: str) -> Unavailable:
        return Unavailable(
            message, code="busy", retry_after_seconds=max(1, math.ceil(self._estimated_wait()))
        )


def _give_up_first(places: dict[asyncio.Timeout, float]) -> None:
    place = next(iter(places))
    del places[place]
    place.reschedule(asyncio.get_running_loop().time())


def _out_of_time() -> Unavailable:
    return Unavailable(
        "the time for this request ran out", code="deadline_exceeded", retry_after_seconds=1
    )


def _at_stake(engine: Scorer, job: _Job, others: Sequence[_Job]) -> int:
    between = [item for other in others for item in other.encoded]
    return max(engine.at_stake(item, between) for item in job.encoded)


def grouped(encoded: tuple[Encoded, ...], cached_tokens: Callable[[Encoded], int]) -> list[int]:
    """Return the indices of `encoded`, those with equal leading segments side by side.

    Groups that memory holds most of come first, before others push them out, and else in the
    order of their first member. Members keep their order.
    """
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for index, item in enumerate(encoded):
        groups.setdefault(item.segments[:-1], []).append(index)
    warmest_first = sorted(groups.values(), key=lambda members: -cached_tokens(encoded[members[0]]))
    return [index for members in warmest_first for index in members]
