"""The order of the line, on a clock that stands where the test puts it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from adapter.schedule import MAX_OVERTAKES, Line


@dataclass(eq=False)
class Job:
    """A job that has `stake` tokens in memory, which any other job pushes out."""

    name: str
    stake: int = 0
    seconds: float = 1.0
    deadline: float = math.inf
    overtaken: int = 0
    others: list[str] = field(default_factory=list)


def take(line: Line[Job], now: float = 0.0, *, is_rate_known: bool = True) -> Job:
    def at_stake(job: Job, others: Sequence[Job]) -> int:
        job.others = [other.name for other in others]
        return job.stake if others else 0

    def seconds(job: Job) -> float:
        return job.seconds

    return line.take(now=now, at_stake=at_stake, seconds=seconds if is_rate_known else None)


def line_of(*jobs: Job) -> Line[Job]:
    line: Line[Job] = Line()
    for job in jobs:
        line.join(job)
    return line


def names(line: Line[Job], now: float = 0.0) -> str:
    taken = []
    while line:
        job = take(line, now)
        now += job.seconds
        taken.append(job.name)
    return "".join(taken)


def test_first_come_first_served_where_nothing_is_at_stake() -> None:
    assert names(line_of(Job("a"), Job("b"), Job("c"))) == "abc"


def test_a_job_whose_state_would_be_lost_goes_first() -> None:
    assert names(line_of(Job("a"), Job("b", stake=5), Job("c"))) == "bac"


def test_the_first_in_line_stays_first_when_it_has_as_much_to_lose() -> None:
    assert names(line_of(Job("a", stake=5), Job("b", stake=5), Job("c"))) == "abc"


def test_jobs_are_asked_about_what_comes_before_them() -> None:
    jobs = [Job("a"), Job("b"), Job("c")]
    take(line_of(*jobs))

    assert [job.others for job in jobs] == [["b", "c"], ["a"], ["a", "b"]]


def test_nobody_is_overtaken_more_often_than_the_bound() -> None:
    line = line_of(Job("a"), *(Job("w", stake=5) for _ in range(10)))

    assert names(line) == "w" * MAX_OVERTAKES + "a" + "w" * (10 - MAX_OVERTAKES)


def test_a_deadline_that_would_break_keeps_its_job_in_front() -> None:
    def line(deadline: float) -> Line[Job]:
        return line_of(Job("a", seconds=2, deadline=deadline), Job("w", stake=5, seconds=3))

    # At 10, a takes until 12; behind w, until 15.
    assert names(line(15), now=10) == "wa"
    assert names(line(14.9), now=10) == "aw"


def test_the_deadline_of_every_job_in_between_counts() -> None:
    a, b = Job("a", seconds=2), Job("b", seconds=2, deadline=6.9)

    assert names(line_of(a, b, Job("w", stake=5, seconds=3))) == "abw"
    b.deadline = 7
    assert names(line_of(a, b, Job("w", stake=5, seconds=3))) == "wab"


def test_a_deadline_that_is_lost_anyway_is_made_no_worse() -> None:
    assert names(line_of(Job("a", deadline=0.5), Job("w", stake=5, seconds=0.1))) == "aw"


def test_first_come_first_served_while_the_speed_is_unknown() -> None:
    line = line_of(Job("a"), Job("w", stake=5))

    assert take(line, is_rate_known=False).name == "a"


def test_jobs_that_are_gone_count_for_nothing() -> None:
    gone = Job("a", deadline=0)
    line = line_of(gone, Job("b"), Job("w", stake=5))
    line.drop(lambda job: job is gone)

    assert names(line) == "wb"


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 5]), st.floats(0.1, 5), st.floats(1, 60), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_every_job_is_served_within_the_bounds(
    rows: list[tuple[int, float, float, int]],
) -> None:
    """Whoever would be in time in a first-come line is in time, and few are served before it."""
    jobs = [
        Job(str(at), stake, seconds, deadline)
        for at, (stake, seconds, deadline, _) in enumerate(rows)
    ]
    finished, fifo = 0.0, {}
    for job in jobs:
        finished += job.seconds
        fifo[job.name] = finished
    line = line_of(*jobs)
    now, order = 0.0, []
    while line:
        job = take(line, now)
        now += job.seconds
        order.append(job)
        if fifo[job.name] <= job.deadline - 1e-6:
            assert now <= job.deadline + 1e-6
    for at, job in enumerate(order):
        late_comers = [other for other in order[:at] if int(other.name) > int(job.name)]
        assert len(late_comers) == job.overtaken <= MAX_OVERTAKES
