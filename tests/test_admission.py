"""Admission and health, on a clock and an engine that the test moves by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from adapter.admission import Admission, grouped
from adapter.engine import Cancelled, Forward
from adapter.errors import ScoringError, ScoringFailed, Unavailable
from adapter.lanes import Lanes
from adapter.lifecycle import Lifecycle
from adapter.metrics import Metrics
from adapter.tokens import Encoded


class Engine:
    """Scores when the test lets it, in as many seconds of its clock as the test says."""

    def __init__(self) -> None:
        self.seconds = 1.0
        self.error: Exception | None = None
        self.poison: tuple[int, ...] | None = None
        self.released = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.order: list[tuple[int, ...]] = []
        self.together: list[int] = []
        self.lanes = Lanes()

    def forward_together(
        self, several: Sequence[Encoded], is_cancelled: Callable[[], bool]
    ) -> list[Forward]:
        self.entered.release()
        assert self.released.acquire(timeout=60)
        self.order += [encoded.token_ids for encoded in several]
        self.together.append(len(several))
        if self.error is not None:
            raise self.error
        if self.poison in [encoded.token_ids for encoded in several]:
            raise ScoringError("poisoned")
        if is_cancelled():
            raise Cancelled
        logits = np.arange(10, dtype=np.float32)
        return [Forward(logits, encoded.input_tokens, 0, self.seconds) for encoded in several]

    def cached_tokens(self, encoded: Encoded) -> int:
        return 0

    def at_stake(self, encoded: Encoded, others: Sequence[Encoded]) -> int:
        """A prompt of three segments is in memory, and lost to any other."""
        return 100 * (len(encoded.segments) == 3 and len(others) > 0)


class Bench:
    """An admission with its worker thread."""

    def __init__(self, max_queue: int = 8, *, timeout_seconds: float = 55) -> None:
        self.now = 100.0
        self.engine = Engine()
        self.lifecycle = Lifecycle()
        self.lifecycle.ready()
        self.admission = Admission(
            self.lifecycle,
            Metrics(),
            max_queue=max_queue,
            timeout_seconds=timeout_seconds,
            grace_seconds=1,
            clock=lambda: self.now,
        )

    @contextmanager
    def working(self) -> Iterator[None]:
        thread = threading.Thread(target=self.admission.work, args=(self.engine,))
        thread.start()
        yield
        self.admission.stop()
        self.engine.released.release(1000)
        thread.join(60)
        assert not thread.is_alive()

    async def ask(self, tokens: int = 10) -> Any:
        return await self.score(encoded(tokens))

    async def score(self, item: Encoded) -> Any:
        with self.admission.enter() as permit:
            return await permit.score((item,))

    async def dribble(self) -> None:
        """Be a request whose body never comes."""
        with self.admission.enter() as permit:
            async with permit.arriving():
                await asyncio.Event().wait()

    async def stop_reading(self) -> None:
        """Be a request whose caller does not take its answer."""
        with self.admission.enter() as permit:
            async with permit.sending():
                await asyncio.Event().wait()

    async def entered(self) -> None:
        assert await asyncio.to_thread(self.engine.entered.acquire, timeout=60)


def encoded(tokens: int, *segments: tuple[int, ...]) -> Encoded:
    parts = segments or ((1,) * (tokens - 1), (2,))
    return Encoded(parts, (0, 1), f"hash of {parts}", "version")


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_wait_that_would_pass_the_deadline_is_refused_at_once() -> None:
    bench = Bench()

    async def scenario() -> None:
        bench.engine.released.release()
        await bench.ask(100)  # 100 tokens a second
        first = asyncio.ensure_future(bench.ask(5400))  # 54 seconds of work
        await bench.entered()
        await bench.entered()
        second = asyncio.ensure_future(bench.ask(200))  # waits 54 of its 55 seconds
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as caught:
            await bench.ask(10)  # would wait 56

        assert (caught.value.code, caught.value.retry_after_seconds) == ("busy", 56)
        bench.engine.released.release(2)
        assert len((await first).scored) == len((await second).scored) == 1

    with bench.working():
        run(scenario())


def test_the_slowest_body_gives_its_place_up_after_its_grace() -> None:
    bench = Bench(max_queue=1)

    async def scenario() -> None:
        first = asyncio.ensure_future(bench.dribble())
        await asyncio.sleep(0)
        bench.now += 1
        second = asyncio.ensure_future(bench.dribble())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as within_grace:
            await bench.ask()
        bench.now += 0.5
        bench.engine.released.release()
        answer = await bench.ask()
        with pytest.raises(Unavailable) as gave_way:
            await first

        assert (within_grace.value.code, gave_way.value.code) == ("busy", "busy")
        assert len(answer.scored) == 1
        assert (second.done(), bench.admission.admitted) == (False, 1)
        bench.admission.refuse_unfinished(
            Unavailable("shutting down", code="draining", retry_after_seconds=1)
        )
        with pytest.raises(Unavailable) as refused:
            await second
        assert (refused.value.code, bench.admission.admitted) == ("draining", 0)

    with bench.working():
        run(scenario())


def test_whoever_reads_slowly_gives_way_as_whoever_sends_slowly_does() -> None:
    bench = Bench(max_queue=1)

    async def scenario() -> None:
        reader = asyncio.ensure_future(bench.stop_reading())
        await asyncio.sleep(0)
        bench.now += 1
        sender = asyncio.ensure_future(bench.dribble())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await bench.ask()
        bench.now += 1.5
        bench.engine.released.release(2)
        await bench.ask()
        with pytest.raises(Unavailable) as gave_way:
            await reader

        # The one that is waited for longest goes first.
        assert (gave_way.value.code, sender.done()) == ("busy", False)
        reader = asyncio.ensure_future(bench.stop_reading())
        await asyncio.sleep(0)
        await bench.ask()
        with pytest.raises(Unavailable, match="body"):
            await sender
        assert not reader.done()
        # Lines that are left at the end have an answer, and are sent while they can be.
        bench.admission.refuse_unfinished(
            Unavailable("shutting down", code="draining", retry_after_seconds=1)
        )
        await asyncio.sleep(0)
        assert not reader.done()
        reader.cancel()

    with bench.working():
        run(scenario())


def test_a_worker_that_hangs_is_told_and_keeps_nobody_waiting() -> None:
    bench = Bench(timeout_seconds=2)
    conditions = []

    def look() -> None:
        bench.lifecycle.hangs(bench.admission.is_hanging)
        conditions.append(bench.lifecycle.condition)

    async def scenario() -> None:
        look()
        # The time-out is the event loop's: the worker is in a decode, and looks at no clock.
        first = asyncio.ensure_future(bench.ask())
        await bench.entered()
        second = asyncio.ensure_future(bench.ask())
        answers = await asyncio.gather(first, second, return_exceptions=True)
        assert [getattr(answer, "code", None) for answer in answers] == ["deadline_exceeded"] * 2
        assert bench.admission.admitted == 0
        bench.now += 4
        look()
        bench.now += 0.5
        look()
        bench.engine.released.release()
        while bench.admission.is_hanging:
            await asyncio.sleep(0)
        look()

    with bench.working():
        run(scenario())
    assert conditions == ["ready", "ready", "unhealthy", "ready"]
    # What nobody waits for any more is not scored when it goes on.
    assert len(bench.engine.order) == 1


def test_a_refusal_is_not_replaced_by_another() -> None:
    bench = Bench()

    async def scenario() -> None:
        with bench.admission.enter() as permit:
            for code in ("draining", "worker_failed"):
                bench.admission.refuse_unfinished(
                    Unavailable("gone", code=code, retry_after_seconds=1)
                )
                with pytest.raises(Unavailable) as caught:
                    permit.require_open()
                assert caught.value.code == "draining"

    run(scenario())


def test_full_queue_refuses_and_says_when_to_come_back() -> None:
    bench = Bench(max_queue=1)

    async def scenario() -> None:
        bench.engine.released.release()
        await bench.ask(100)
        first = asyncio.ensure_future(bench.ask(1000))
        second = asyncio.ensure_future(bench.ask(500))
        await bench.entered()
        await bench.entered()
        assert (bench.admission.admitted, bench.admission.waiting) == (2, 1)
        with pytest.raises(Unavailable) as caught:
            await bench.ask()

        assert (caught.value.code, caught.value.retry_after_seconds) == ("busy", 15)
        bench.engine.released.release(2)
        await asyncio.gather(first, second)
        assert bench.admission.admitted == 0

    with bench.working():
        run(scenario())


def test_three_failures_in_a_row_are_unhealthy_and_a_success_mends_it() -> None:
    bench = Bench()

    async def fail_once(tokens: int) -> None:
        bench.engine.released.release()
        with pytest.raises(ScoringFailed) as caught:
            await bench.ask(tokens)
        assert "secret" not in caught.value.message

    async def scenario() -> None:
        bench.engine.error = ScoringError("a secret of the inside")
        for tokens in (10, 20, 20, 20):  # a caller that tries again counts once
            await fail_once(tokens)
        conditions = [bench.lifecycle.condition]
        await fail_once(30)
        conditions.append(bench.lifecycle.condition)
        bench.engine.error = None
        bench.engine.released.release()
        await bench.ask()
        conditions.append(bench.lifecycle.condition)

        assert conditions == ["ready", "unhealthy", "ready"]

    with bench.working():
        run(scenario())


def test_cancelled_request_is_skipped_by_the_worker() -> None:
    bench = Bench()

    async def scenario() -> None:
        running = asyncio.ensure_future(bench.ask(10))
        await bench.entered()
        queued = asyncio.ensure_future(bench.ask(20))
        last = asyncio.ensure_future(bench.ask(30))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        bench.engine.released.release(2)
        await asyncio.gather(running, last)

        assert [len(ids) for ids in bench.engine.order] == [10, 30]

    with bench.working():
        run(scenario())


def test_unfinished_requests_can_be_refused_while_one_is_scored() -> None:
    bench = Bench()

    async def scenario() -> None:
        requests = [asyncio.ensure_future(bench.ask()) for _ in range(3)]
        await bench.entered()
        with bench.admission.enter() as still_reading:
            bench.admission.refuse_unfinished(
                Unavailable("closing", code="draining", retry_after_seconds=1)
            )
            requests.append(asyncio.ensure_future(still_reading.score((encoded(10),))))
            answers = await asyncio.gather(*requests, return_exceptions=True)

        assert [getattr(answer, "code", None) for answer in answers] == ["draining"] * 4

    with bench.working():
        run(scenario())


@pytest.mark.parametrize(
    ("move", "code"), [("drain", "draining"), ("fail", "worker_failed")], ids=["drain", "fail"]
)
def test_states_that_take_no_work_say_which_they_are(move: str, code: str) -> None:
    bench = Bench()
    getattr(bench.lifecycle, move)()

    with pytest.raises(Unavailable) as caught:
        run(bench.ask())

    assert caught.value.code == code


def test_loading_takes_no_work_and_a_late_ready_does_not_undo_a_drain() -> None:
    lifecycle = Lifecycle()
    with pytest.raises(Unavailable, match="loading"):
        lifecycle.require_ready()
    lifecycle.drain()
    lifecycle.ready()

    assert lifecycle.condition == "draining"


def test_decisions_with_equal_leading_segments_are_scored_side_by_side() -> None:
    head, one, two, rest = (1,), (2, 2), (3, 3), (4,)
    items = (
        encoded(0, head, one, rest),
        encoded(0, head, two, rest),
        encoded(0, head, rest),
        encoded(0, head, one, (5,)),
        encoded(0, head, two, (6,)),
    )

    assert grouped(items, lambda item: 0) == [0, 3, 1, 4, 2]
    # What memory holds most of comes first.
    warm: dict[tuple[tuple[int, ...], ...], int] = {(head, two): 50, (head,): 10}
    assert grouped(items, lambda item: warm.get(item.segments[:-1], 0)) == [1, 4, 2, 0, 3]


def test_a_decision_that_would_lose_its_state_is_scored_before_others() -> None:
    bench = Bench()
    cold = encoded(30)
    warm = encoded(0, (1,), (2, 2), (3,))

    async def scenario() -> None:
        bench.engine.released.release()
        await bench.score(encoded(10))  # now there is a rate
        await bench.entered()
        running = asyncio.ensure_future(bench.score(encoded(20)))
        await bench.entered()
        waiting = [asyncio.ensure_future(bench.score(item)) for item in (cold, warm, cold)]
        await asyncio.sleep(0)
        bench.engine.released.release(4)
        await asyncio.gather(running, *waiting)

        assert [len(ids) for ids in bench.engine.order] == [10, 20, 4, 30, 30]

    with bench.working():
        run(scenario())


def test_callers_whose_prompts_end_differently_are_merged_where_there_are_lanes() -> None:
    bench = Bench()
    bench.engine.lanes = Lanes(3, batch_tokens=100, context_tokens=100)

    async def scenario() -> None:
        running = asyncio.ensure_future(bench.ask(20))
        await bench.entered()
        waiting = [
            asyncio.ensure_future(bench.score(encoded(0, *segments)))
            for segments in (((1,), (2,)), ((7,), (2,)), ((1,), (3,)), ((1,), (4,)), ((1,), (5,)))
        ]
        await asyncio.sleep(0)
        bench.engine.released.release(10)
        answers = await asyncio.gather(running, *waiting)

        assert bench.engine.together == [1, 3, 1, 1]
        assert bench.engine.order[1:4] == [(1, 2), (1, 3), (1, 4)]
        assert all(len(answer.scored) == 1 for answer in answers)

    with bench.working():
        run(scenario())


def test_nobody_is_overtaken_by_what_does_not_fit_into_the_decode() -> None:
    bench = Bench()
    bench.engine.lanes = Lanes(3, batch_tokens=5, context_tokens=100)

    async def scenario() -> None:
        running = asyncio.ensure_future(bench.ask(20))
        await bench.entered()
        prompts = [encoded(0, (1,), (2, 2, 2)), encoded(0, (7,), (2,)), encoded(0, (1,), (3, 3, 3))]
        waiting = [asyncio.ensure_future(bench.score(one)) for one in prompts]
        await asyncio.sleep(0)
        bench.engine.released.release(10)
        await asyncio.gather(running, *waiting)

        assert bench.engine.together == [1, 1, 1, 1]
        assert bench.engine.order[1:] == [one.token_ids for one in prompts]

    with bench.working():
        run(scenario())


def test_what_fails_together_is_tried_alone() -> None:
    bench = Bench()
    bench.engine.lanes = Lanes(3, batch_tokens=100, context_tokens=100)
    bench.engine.poison = (1, 3)

    async def scenario() -> None:
        running = asyncio.ensure_future(bench.ask(20))
        await bench.entered()
        waiting = [asyncio.ensure_future(bench.score(encoded(0, (1,), (n,)))) for n in (2, 3, 4)]
        await asyncio.sleep(0)
        bench.engine.released.release(10)
        answers = await asyncio.gather(running, *waiting, return_exceptions=True)

        assert bench.engine.together == [1, 3, 1, 1, 1]
        assert [isinstance(answer, ScoringFailed) for answer in answers] == [
            *(False, False, True, False),
        ]

    with bench.working():
        run(scenario())
