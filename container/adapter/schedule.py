"""The line before the worker: first come, first served, unless memory would go to waste.

A job whose state is in memory, and would not be any more once the jobs before it were scored, may
go before them: nothing else moves a job out of its turn. No job is overtaken more than
`MAX_OVERTAKES` times, and none whose deadline that would break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

MAX_OVERTAKES = 4
# How far back a job may come from: each is compared with all before it.
LOOKAHEAD = 8


class Waiting(Protocol):
    """A job in the line."""

    overtaken: int

    @property
    def deadline(self) -> float: ...


JobT = TypeVar("JobT", bound=Waiting)


class Line(Generic[JobT]):
    """Jobs in the order in which they came. One thread uses it."""

    def __init__(self) -> None:
        self._jobs: list[JobT] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def join(self, job: JobT) -> None:
        """Put `job` at the end."""
        self._jobs.append(job)

    def drop(self, is_gone: Callable[[JobT], bool]) -> None:
        """Let the jobs go that nobody waits for any more."""
        self._jobs = [job for job in self._jobs if not is_gone(job)]

    def take(
        self,
        *,
        now: float,
        at_stake: Callable[[JobT, Sequence[JobT]], int],
        seconds: Callable[[JobT], float] | None,
    ) -> JobT:
        """Take the job out whose turn it is.

        `at_stake` says how many tokens of a job are in memory, and would not be after the jobs
        that come before it; `seconds`, how long a job takes, None while nobody knows.
        """
        index = 0 if seconds is None else self._turn(now, at_stake, seconds)
        for job in self._jobs[:index]:
            job.overtaken += 1
        return self._jobs.pop(index)

    def take_company(self, may_join: Callable[[Sequence[JobT], JobT], bool]) -> list[JobT]:
        """Take out the jobs that are to be done in one go with the one just taken, in their order.

        `may_join` says whether a job may join those that did. They overtake those that they leave
        behind, and none that was overtaken often enough: what is done in one go hardly takes longer
        than the first of them alone.
        """
        company: list[JobT] = []
        stay: list[JobT] = []
        may_pass = True
        for job in self._jobs[:LOOKAHEAD]:
            if may_pass and may_join(company, job):
                company.append(job)
                for other in stay:
                    other.overtaken += 1
            else:
                stay.append(job)
            may_pass = all(other.overtaken < MAX_OVERTAKES for other in stay)
        self._jobs[:LOOKAHEAD] = stay
        return company

    def _turn(
        self,
        now: float,
        at_stake: Callable[[JobT, Sequence[JobT]], int],
        seconds: Callable[[JobT], float],
    ) -> int:
        slack = float("inf")
        finished = now
        near = self._jobs[:LOOKAHEAD]
        for index, job in enumerate(near):
            others = near[:index] or near[1:]
            if seconds(job) <= slack and at_stake(job, others):
                return index
            if job.overtaken >= MAX_OVERTAKES:
                break
            finished += seconds(job)
            slack = min(slack, job.deadline - finished)
        return 0
