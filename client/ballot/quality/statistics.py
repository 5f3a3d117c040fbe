"""The statistics, on plain numbers; docs/quality.md says what each of them means.

Confidences and probabilities are between 0 and 1. Sums are correctly rounded, so that no figure
depends on the order of the data. What nothing is known of is None, not a number.
"""

from __future__ import annotations

import math
import random
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist

# The standard normal deviate of a two-sided 95 % interval.
_DEVIATE = NormalDist().inv_cdf(0.975)
BINS = 10
# Where a logarithm would be infinite; what scikit-learn takes.
LEAST_PROBABILITY = sys.float_info.epsilon
# How far the probabilities of a valid distribution may sum from 1: JevBench's rule.
VALID_WITHIN, STRICTLY_VALID_WITHIN = 0.02, 0.001
_CHANCE_DRAWS, _CHANCE_SEED = 1000, 0


@dataclass(frozen=True)
class Share:
    """`count` of `total`, with the 95 % Wilson score interval of the share.

    Of nothing, the share is None and the interval everything. Source: E. B. Wilson, "Probable
    inference, the law of succession, and statistical inference", JASA 22 (1927).
    """

    count: int
    total: int
    value: float | None
    low: float
    high: float

    @classmethod
    def of(cls, count: int, total: int) -> Share:
        """Return the share of `count` in `total`."""
        if not total:
            return cls(0, 0, None, 0.0, 1.0)
        value, square = count / total, _DEVIATE**2
        middle = (value + square / (2 * total)) / (1 + square / total)
        spread = math.sqrt(value * (1 - value) / total + square / (4 * total**2))
        half = _DEVIATE * spread / (1 + square / total)
        # At either end the bound is that end; rounding must not move it off.
        low = 0.0 if count == 0 else middle - half
        high = 1.0 if count == total else middle + half
        return cls(count, total, value, low, high)


@dataclass(frozen=True)
class Mean:
    """A mean, and its 95 % interval by its standard error; a single value has no interval."""

    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Return the mean of `values`."""
        value = mean(values)
        if value is None or len(values) < 2:
            return cls(value, None, None)
        squares = math.fsum((one - value) ** 2 for one in values)
        half = _DEVIATE * math.sqrt(squares / (len(values) - 1) / len(values))
        return cls(value, value - half, value + half)


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return math.fsum(values) / len(values) if values else None


def predicted(option_ids: Sequence[str], probabilities: Sequence[float]) -> str:
    """Return the most probable option; of equals, the one whose id sorts first: JevBench's rule."""
    highest = max(probabilities)
    return min(id for id, one in zip(option_ids, probabilities, strict=True) if one == highest)


def is_valid(probabilities: Sequence[float], *, within: float = VALID_WITHIN) -> bool:
    """Return whether these are probabilities that sum to 1, `within` a tolerance."""
    return all(0 <= one <= 1 for one in probabilities) and (
        abs(math.fsum(probabilities) - 1) <= within
    )


def log_loss(probability: float) -> float:
    """Return the negative logarithm, in nats, of the probability that the right option got."""
    return -math.log(min(1.0, max(probability, LEAST_PROBABILITY)))


def brier(probabilities: Sequence[float], expected: int) -> float:
    """Return the squared distance from certainty in the option `expected`, an index: 0 to 2.

    Source: G. W. Brier, "Verification of forecasts expressed in terms of probability" (1950); for
    two options it is twice what halves of it are elsewhere.
    """
    return math.fsum((one - (index == expected)) ** 2 for index, one in enumerate(probabilities))


@dataclass(frozen=True)
class Bin:
    """The answers with a confidence above `low` and up to `high`.

    Of an empty bin `mean_confidence` and the share are None.
    """

    low: float
    high: float
    mean_confidence: float | None
    correct: Share


def equal_width_bins(confidences: Sequence[float], correct: Sequence[bool]) -> tuple[Bin, ...]:
    """Return ten bins, each a tenth of 0 to 1 wide; a confidence of 0 is in the first."""
    edges = [index / BINS for index in range(1, BINS)]
    return _bins(confidences, correct, edges=edges)


def equal_count_bins(confidences: Sequence[float], correct: Sequence[bool]) -> tuple[Bin, ...]:
    """Return up to ten bins of about as many answers each; equal confidences share one.

    The edges are the confidences' deciles; where some coincide there are fewer bins.
    """
    if not confidences:
        return ()
    ordered = sorted(confidences)
    edges = [percentile(ordered, index / BINS) for index in range(1, BINS)]
    return tuple(one for one in _bins(confidences, correct, edges=edges) if one.correct.total)


def _bins(
    confidences: Sequence[float], correct: Sequence[bool], *, edges: Sequence[float]
) -> tuple[Bin, ...]:
    members: list[list[tuple[float, bool]]] = [[] for _ in range(len(edges) + 1)]
    for confidence, is_right in zip(confidences, correct, strict=True):
        members[bisect_left(edges, confidence)].append((confidence, is_right))
    return tuple(
        Bin(
            low=low,
            high=high,
            mean_confidence=mean([confidence for confidence, _ in inside]),
            correct=Share.of(sum(is_right for _, is_right in inside), len(inside)),
        )
        for low, high, inside in zip((0.0, *edges), (*edges, 1.0), members, strict=True)
    )


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Return the expected calibration error: |accuracy - confidence|, weighted by the answers.

    Source: C. Guo et al., "On calibration of modern neural networks", ICML 2017.
    """
    total = sum(one.correct.total for one in bins)
    gaps = [
        one.correct.total * abs(one.correct.count / one.correct.total - one.mean_confidence)
        for one in bins
        if one.mean_confidence is not None
    ]
    return math.fsum(gaps) / total if total else None


def calibration_error_by_chance(confidences: Sequence[float]) -> float | None:
    """Return what the error over equal-width bins stays under 95 times in 100 if nothing is wrong.

    That is when each answer is right with just the probability that it says. A finite number of
    answers never shows an error of 0, so only one above this says that the confidences are off.
    Source: J. Broecker and L. A. Smith, "Increasing the reliability of reliability diagrams",
    Weather and Forecasting 22 (2007): consistency resampling.
    """
    if not confidences:
        return None
    edges = [index / BINS for index in range(1, BINS)]
    members: list[list[float]] = [[] for _ in range(BINS)]
    for confidence in sorted(confidences):
        members[bisect_left(edges, confidence)].append(confidence)
    sums = [math.fsum(inside) for inside in members]
    draw = random.Random(_CHANCE_SEED).random
    errors = sorted(
        math.fsum(
            abs(sum(draw() < confidence for confidence in inside) - expected)
            for inside, expected in zip(members, sums, strict=True)
        )
        / len(confidences)
        for _ in range(_CHANCE_DRAWS)
    )
    return percentile(errors, 0.95)


@dataclass(frozen=True)
class Coverage:
    """What is left when answers below a confidence are not taken: their share, and how good."""

    least_confidence: float
    coverage: float
    correct: Share


def selective_accuracy(
    confidences: Sequence[float], correct: Sequence[bool]
) -> tuple[Coverage, ...]:
    """Return a point for each confidence that occurs, the highest first."""
    ordered = sorted(zip(confidences, correct, strict=True), reverse=True)
    points: list[Coverage] = []
    taken = right = 0
    for confidence, same in groupby(ordered, key=lambda pair: pair[0]):
        outcomes = [is_right for _, is_right in same]
        taken, right = taken + len(outcomes), right + sum(outcomes)
        points.append(Coverage(confidence, taken / len(ordered), Share.of(right, taken)))
    return tuple(points)


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Return the percentile of values in ascending order, at least one.

    Between two values it is interpolated: R. J. Hyndman and Y. Fan's type 7, numpy's default.
    """
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Percentiles:
    """Percentiles and the mean of some seconds."""

    p50: float
    p95: float
    p99: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles | None:
        """Return those of `values`, or None where there are none."""
        average = mean(values)
        if average is None:
            return None
        ordered = sorted(values)
        p50, p95, p99 = (percentile(ordered, part) for part in (0.5, 0.95, 0.99))
        return cls(p50, p95, p99, average)


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, from the numbers of unequal pairs.

    It is the probability of a split at least this uneven if either side were as likely to be the
    one that is right. Source: Q. McNemar, Psychometrika 12 (1947), with the binomial distribution.
    """
    pairs = only_first + only_second
    tail, term = 0, 1
    for successes in range(min(only_first, only_second) + 1):
        tail += term
        term = term * (pairs - successes) // (successes + 1)
    return min(1.0, 2 * tail / (1 << pairs))
