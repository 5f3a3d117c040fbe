"""How sure a figure is, by drawing its data again: bootstrap intervals over groups.

Source: B. Efron, R. Tibshirani, "An Introduction to the Bootstrap" (1993): the percentile interval.
Examples of one group (of one template, one customer) tell less than as many of their own, so whole
groups are drawn.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ballot.quality.statistics import BINS, percentile

REPLICATES = 2000
_EDGES = [index / BINS for index in range(1, BINS)]

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Interval:
    """A figure, and the bounds that it lies between at the level that is told with it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Change:
    """A figure before and after something, and how much lower it is after."""

    before: float
    after: float
    gain: Interval


def bootstrap(
    items: Sequence[ItemT],
    figure: Callable[[Sequence[ItemT]], float],
    *,
    seed: int,
    level: float = 0.95,
) -> Interval:
    """Return `figure` of `items`, and its percentile interval at `level`."""
    draw = random.Random(seed)
    drawn = sorted(figure(draw.choices(items, k=len(items))) for _ in range(REPLICATES))
    outside = (1 - level) / 2
    return Interval(figure(items), percentile(drawn, outside), percentile(drawn, 1 - outside))


def mean_over_groups(
    values: Sequence[float], groups: Sequence[str], *, seed: int, level: float = 0.95
) -> Interval:
    """Return the mean of `values` with its interval; `groups` has the group of each."""
    totals: dict[str, tuple[float, int]] = {}
    for value, group in zip(values, groups, strict=True):
        total, count = totals.get(group, (0.0, 0))
        totals[group] = (total + value, count + 1)

    def mean(drawn: Sequence[tuple[float, int]]) -> float:
        return math.fsum(total for total, _ in drawn) / sum(count for _, count in drawn)

    return bootstrap(list(totals.values()), mean, seed=seed, level=level)


def change_of_means(
    before: Sequence[float],
    after: Sequence[float],
    groups: Sequence[str],
    *,
    seed: int,
    level: float = 0.95,
) -> Change:
    """Return how two means over the same examples differ; `groups` has the group of each."""
    gains = [one - other for one, other in zip(before, after, strict=True)]
    return Change(
        before=math.fsum(before) / len(before),
        after=math.fsum(after) / len(after),
        gain=mean_over_groups(gains, groups, seed=seed, level=level),
    )


# A confidence, and whether the answer was right.
Judged = tuple[float, bool]
# The bins of an answer's two confidences, and how far each is from what happened.
_Gaps = tuple[tuple[int, float], tuple[int, float]]


def change_of_calibration_error(
    before: Sequence[Judged], after: Sequence[Judged], groups: Sequence[str], *, seed: int
) -> Change:
    """Return how the expected calibration errors of the same examples differ.

    The bins are the ten of `statistics.equal_width_bins`, the level of the interval is 95 %.
    """
    answers: dict[str, list[_Gaps]] = {}
    for one, other, group in zip(before, after, groups, strict=True):
        answers.setdefault(group, []).append((_gap(one), _gap(other)))

    def errors(drawn: Sequence[Sequence[_Gaps]]) -> list[float]:
        sums = [[0.0] * BINS, [0.0] * BINS]
        count = 0
        for group in drawn:
            count += len(group)
            for (bin_before, gap_before), (bin_after, gap_after) in group:
                sums[0][bin_before] += gap_before
                sums[1][bin_after] += gap_after
        # A bin's share times the distance of accuracy and confidence in it is this sum by count.
        return [math.fsum(map(abs, side)) / count for side in sums]

    def gain(drawn: Sequence[Sequence[_Gaps]]) -> float:
        first, second = errors(drawn)
        return first - second

    everything = list(answers.values())
    first, second = errors(everything)
    return Change(first, second, bootstrap(everything, gain, seed=seed))


def _gap(answer: Judged) -> tuple[int, float]:
    confidence, is_right = answer
    return bisect_left(_EDGES, confidence), is_right - confidence
