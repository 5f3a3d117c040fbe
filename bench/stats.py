"""Medians with their quartiles, and ratios of samples that were taken in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Spread:
    """The median of `count` samples, between their first and third quartile."""

    median: float
    low: float
    high: float
    count: int


def spread(samples: Iterable[float]) -> Spread:
    """Summarize samples, of which there is at least one."""
    values = sorted(samples)
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, len(values))


def exactly(value: float, *, count: int = 1) -> Spread:
    """Return a figure that has no spread, such as a largest value of `count`."""
    return Spread(value, value, value, count)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], *, less: float = 0.0) -> Spread:
    """Return the spread of ours over theirs, pair by pair, with `less` taken off ours first.

    Both samples of a pair were taken one right after the other, so that a machine that slows down
    between pairs slows both.
    """
    return spread((a - less) / b for a, b in zip(ours, theirs, strict=True))


def alternate(sides: Mapping[str, Callable[[int], float]], *, pairs: int) -> dict[str, list[float]]:
    """Return each side's `pairs` samples, taken in turns; every other turn goes backwards."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(pairs):
        order = list(sides) if index % 2 == 0 else list(sides)[::-1]
        for name in order:
            samples[name].append(sides[name](index))
    return samples


def drift(line: Sequence[tuple[float, float]]) -> Spread:
    """Return how far a line of (x, y) moves from its first x to its last, by its usual slope.

    The slopes are those between all pairs of points (Theil and Sen), so that it takes more than a
    quarter of the points to be off to move the median. `count` is that of the points.
    """
    span = line[-1][0] - line[0][0]
    moves = spread(
        (later - earlier) / (end - start) * span
        for (start, earlier), (end, later) in combinations(line, 2)
    )
    return Spread(moves.median, moves.low, moves.high, len(line))
