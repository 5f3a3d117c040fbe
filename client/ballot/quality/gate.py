"""Limits that a report's figures must keep, for a build that stops when decisions get worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from ballot.errors import BallotError
from ballot.quality.figures import Report
from ballot.quality.statistics import Percentiles


class GateError(BallotError):
    """What was given is no list of limits."""


class Bound(Enum):
    """Which side of a limit is good."""

    LEAST = "at least"
    MOST = "at most"


@dataclass(frozen=True)
class Gauge:
    """A figure that can be limited: how to read it (None: not measured), and its good side.

    It is between 0 and `highest`.
    """

    read: Callable[[Report], float | None]
    bound: Bound
    highest: float


def _seconds(of: Percentiles | None, name: str) -> float | None:
    return None if of is None else float(getattr(of, name))


GAUGES = {
    "accuracy": Gauge(lambda report: report.accuracy.value, Bound.LEAST, 1),
    # The lower end of the interval: the accuracy is at least that, 39 times in 40.
    "accuracy_low": Gauge(lambda report: report.accuracy.low, Bound.LEAST, 1),
    "macro_kind": Gauge(lambda report: report.macro_by_kind, Bound.LEAST, 1),
    "macro_family": Gauge(lambda report: report.macro_by_family, Bound.LEAST, 1),
    "answered": Gauge(lambda report: report.answered.value, Bound.LEAST, 1),
    "mass": Gauge(lambda report: report.mass.p50 if report.mass else None, Bound.LEAST, 1),
    "nll": Gauge(lambda report: report.log_loss.value, Bound.MOST, math.inf),
    "brier": Gauge(lambda report: report.brier.value, Bound.MOST, 2),
    "ece": Gauge(lambda report: report.calibration.error, Bound.MOST, 1),
    "flips": Gauge(
        lambda report: report.orders.flips.value if report.orders else None, Bound.MOST, 1
    ),
    "p50": Gauge(lambda report: _seconds(report.latency.client, "p50"), Bound.MOST, math.inf),
    "p95": Gauge(lambda report: _seconds(report.latency.client, "p95"), Bound.MOST, math.inf),
    "p99": Gauge(lambda report: _seconds(report.latency.client, "p99"), Bound.MOST, math.inf),
}


@dataclass(frozen=True)
class Limit:
    """A figure's name and what it must at least, or at most, be."""

    figure: str
    value: float


@dataclass(frozen=True)
class Verdict:
    """A limit held against a report; what was not measured does not keep it."""

    limit: Limit
    measured: float | None

    @property
    def is_kept(self) -> bool:
        """Whether the figure is on the good side of the limit, or on it."""
        if self.measured is None:
            return False
        if GAUGES[self.limit.figure].bound is Bound.LEAST:
            return self.measured >= self.limit.value
        return self.measured <= self.limit.value

    @property
    def line(self) -> str:
        """What was wanted, and what is."""
        name, bound = self.limit.figure, GAUGES[self.limit.figure].bound.value
        found = "not measured" if self.measured is None else f"{self.measured:.4g}"
        return f"{name} is {found}, wanted {bound} {self.limit.value:g}"


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Read limits such as `accuracy=0.9,ece=0.05`.

    Raises:
        GateError: a part is no `figure=number`, or names an unknown figure, or one twice.
    """
    limits: dict[str, Limit] = {}
    for part in text.split(","):
        limit = _parse_limit(part)
        if limit.figure in limits:
            raise _error(f"{limit.figure} has two limits")
        limits[limit.figure] = limit
    return tuple(limits.values())


def _parse_limit(part: str) -> Limit:
    name, equals, number = part.partition("=")
    figure = name.strip()
    if not equals:
        raise _error(f"{part.strip()!r} is no limit, such as accuracy=0.9")
    if figure not in GAUGES:
        raise _error(f"{figure!r} is no figure to limit; there are {', '.join(GAUGES)}")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _error(f"the limit of {figure} is not a number: {number.strip()!r}")
    if not 0 <= value <= GAUGES[figure].highest:
        raise _error(f"{figure} is never {value:g}: it is {_range(GAUGES[figure].highest)}")
    return Limit(figure, value)


def _range(highest: float) -> str:
    return f"between 0 and {highest:g}" if math.isfinite(highest) else "not negative"


def _error(message: str) -> GateError:
    return GateError(message, code="invalid_limit")


def judge(report: Report, limits: Iterable[Limit]) -> tuple[Verdict, ...]:
    """Hold a report against limits, in their order."""
    return tuple(Verdict(limit, GAUGES[limit.figure].read(report)) for limit in limits)
