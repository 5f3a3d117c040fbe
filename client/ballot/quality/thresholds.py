"""How sure an answer has to be: a threshold chosen on half of a run, and tested on the other half.

Nothing about the held-out half is looked at before its test, so that what it shows is what the next
answers of the same kind will do.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from ballot.errors import BallotError
from ballot.quality.calibration import LEAST_GROUPS, folds_of, group_of
from ballot.quality.policy import Bound, Measure, Policy, measured
from ballot.quality.resampling import Interval, mean_over_groups
from ballot.quality.runs import Row, Run, Served
from ballot.quality.statistics import Share, predicted

# The share of thresholds that may miss their target although the held-out half says otherwise.
RISK = 0.05
# The share of claims to save that may be wrong: the lower side of a 95 % interval.
FALSE_SAVINGS = 0.025
LEAST_EXAMPLES = 100
# What an answer is measured at that no threshold accepts.
_NEVER = -1.0


class ThresholdError(BallotError):
    """There is no threshold: too few examples (`too_few_examples`), or none that does it."""


@dataclass(frozen=True)
class Costs:
    """What it costs to accept a right answer, to accept a wrong one, and to fall back."""

    right: float
    wrong: float
    fallback: float


@dataclass(frozen=True)
class Chosen:
    """A threshold, and what the held-out half says of it.

    `accuracy` is that of accepted answers and `least_accuracy` its Clopper-Pearson lower bound, at
    95 % on this one side; `coverage` is the share of all answers that are accepted, with its Wilson
    interval. With costs, these are means per decision, and `saving` is what is saved against always
    falling back, with its 95 % interval.
    """

    measure: Measure
    threshold: float
    examples: int
    accuracy: float | None
    least_accuracy: float
    coverage: Share
    cost: float | None = None
    cost_of_accepting_all: float | None = None
    saving: Interval | None = None


@dataclass(frozen=True)
class _Answer:
    """An answer as a threshold sees it; one below the least mass is never accepted."""

    measured: float
    is_right: bool
    group: str


class _Half:
    """Half of a run's answers, and how many of them a threshold accepts."""

    def __init__(self, answers: Sequence[_Answer]) -> None:
        self.answers = sorted(answers, key=lambda answer: answer.measured)
        self._measured = [answer.measured for answer in self.answers]
        self._right_before = [0, *accumulate(answer.is_right for answer in self.answers)]

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def thresholds(self) -> list[float]:
        """The thresholds that tell answers apart, in order."""
        return sorted({one for one in self._measured if one > _NEVER})

    def accepted(self, threshold: float) -> tuple[int, int]:
        """Return how many answers are right and accepted, and how many are accepted."""
        first = bisect_left(self._measured, threshold)
        return self._right_before[-1] - self._right_before[first], len(self) - first

    def mean_cost(self, threshold: float, costs: Costs) -> float:
        """Return what a decision costs on average."""
        right, accepted = self.accepted(threshold)
        total = (
            costs.right * right
            + costs.wrong * (accepted - right)
            + costs.fallback * (len(self) - accepted)
        )
        return total / len(self)


def threshold_for_accuracy(
    run: Run, *, measure: Measure, target: float, least_mass: float = 0.0
) -> Chosen:
    """Return the smallest threshold above which answers are shown to be right often enough.

    The first half says where to start, at the threshold that it has the best evidence for, and
    which thresholds to try after it, one lower than the other. Each is tested on the second half,
    and the last before the first that fails is taken: however many are tried, the chance that the
    accuracy is in truth below `target` stays at 5 % (fixed sequence testing: A. Angelopoulos et
    al., "Learn then test", 2021).

    Raises:
        ThresholdError: there are too few examples, or not even the first threshold does it.
    """
    first, second = _halves(run, measure, least_mass)
    passed: float | None = None
    for threshold in _to_try(first):
        right, accepted = second.accepted(threshold)
        if not accepted or binomial_tail(right, accepted, target) > RISK:
            break
        passed = threshold
    if passed is None:
        least = math.ceil(math.log(RISK) / math.log(target))
        raise ThresholdError(
            f"no {measure} is shown to give an accuracy of {target:g}: of {len(second)} held-out "
            f"answers too few are sure and right (at least {least} that are all right would do)",
            code="no_threshold",
        )
    return _chosen(second, measure, passed)


def threshold_for_costs(
    run: Run, *, measure: Measure, costs: Costs, least_mass: float = 0.0, seed: int = 0
) -> Chosen:
    """Return the threshold with the least mean cost on one half, and what it costs on the other.

    Two tests on the other half have to show the saving. An exact one sees that a wrong answer may
    be rare and dear although none was drawn, which no bootstrap can; the bootstrap's interval sees
    that answers of one group are alike, which the exact one takes for independent.

    Raises:
        ThresholdError: there are too few examples, or accepting anything is not shown to be
            cheaper than always falling back.
    """
    first, second = _halves(run, measure, least_mass)
    # Of equals, the lowest.
    threshold = min(first.thresholds, key=lambda one: first.mean_cost(one, costs), default=1.0)
    saving = mean_over_groups(
        [costs.fallback - _cost(answer, threshold, costs) for answer in second.answers],
        [answer.group for answer in second.answers],
        seed=seed,
    )
    right, accepted = second.accepted(threshold)
    if saving.low <= 0 or _chance_without_saving(right, accepted, costs) > FALSE_SAVINGS:
        raise ThresholdError(
            f"accepting answers is not shown to be cheaper than always falling back: it saves "
            f"{saving.value:.4g} a decision, 95 % interval {saving.low:.4g} to {saving.high:.4g}; "
            f"of {accepted} accepted answers {right} are right",
            code="no_threshold",
        )
    return replace(
        _chosen(second, measure, threshold),
        cost=second.mean_cost(threshold, costs),
        cost_of_accepting_all=second.mean_cost(0.0, costs),
        saving=saving,
    )


def policy_of(run: Run, chosen: Chosen, *, asked: dict[str, Any], least_mass: float) -> Policy:
    """Return the policy that applies `chosen`; `asked` is what it was to achieve."""
    served = _served(run)
    counts = [len(row.option_ids) for row in run.rows]
    return Policy(
        measure=chosen.measure,
        threshold=chosen.threshold,
        options=(min(counts), max(counts)),
        least_mass=least_mass,
        bound=Bound(
            model_sha256=served.model.sha256,
            prompt_version=served.prompt_version,
            orders=served.orders,
            calibration_sha256=served.calibration_sha256,
        ),
        measured={
            "asked": asked,
            "data_sha256": run.manifest.settings.data_sha256,
            "held_out_examples": chosen.examples,
            "accuracy": chosen.accuracy,
            "least_accuracy": chosen.least_accuracy,
            "coverage": chosen.coverage.value,
        },
    )


def _served(run: Run) -> Served:
    assert run.manifest.served is not None, "this is a bug: a run with answers says who gave them"
    return run.manifest.served


# --- the two halves


def _halves(run: Run, measure: Measure, least_mass: float) -> tuple[_Half, _Half]:
    """Return the answers to choose by and those to test with; no group is in both."""
    groups = [group_of(row) for row in run.rows]
    if len(groups) < LEAST_EXAMPLES or len(set(groups)) < LEAST_GROUPS:
        raise ThresholdError(
            f"the run has {len(groups)} answers in {len(set(groups))} groups; a threshold needs "
            f"{LEAST_EXAMPLES} in {LEAST_GROUPS}, half of them to choose it and half to test it",
            code="too_few_examples",
        )
    halves: tuple[list[_Answer], list[_Answer]] = ([], [])
    for row, fold in zip(run.rows, folds_of(groups), strict=True):
        halves[fold % 2].append(_answer(row, measure, least_mass))
    return _Half(halves[0]), _Half(halves[1])


def _answer(row: Row, measure: Measure, least_mass: float) -> _Answer:
    taken = row.allowed_token_mass >= least_mass
    return _Answer(
        measured=measured(measure, row.probabilities) if taken else _NEVER,
        is_right=predicted(row.option_ids, row.probabilities) == row.expected,
        group=group_of(row),
    )


def _to_try(half: _Half) -> Iterator[float]:
    """Yield the thresholds to try: from that with the best evidence, downwards."""
    thresholds = half.thresholds
    start = max(thresholds, key=lambda one: Share.of(*half.accepted(one)).low, default=_NEVER)
    yield from (one for one in reversed(thresholds) if one <= start)


def _chosen(half: _Half, measure: Measure, threshold: float) -> Chosen:
    right, accepted = half.accepted(threshold)
    return Chosen(
        measure=measure,
        threshold=threshold,
        examples=len(half),
        accuracy=right / accepted if accepted else None,
        least_accuracy=lower_bound(right, accepted),
        coverage=Share.of(accepted, len(half)),
    )


def _cost(answer: _Answer, threshold: float, costs: Costs) -> float:
    if answer.measured < threshold:
        return costs.fallback
    return costs.right if answer.is_right else costs.wrong


# --- exact bounds


def _chance_without_saving(right: int, accepted: int, costs: Costs) -> float:
    """Return the most that the chance of so many right answers can be if nothing is saved.

    Accepting saves exactly when an accepted answer is right more often than where it breaks even.
    """
    if not accepted or costs.right >= costs.fallback:
        return 1.0
    if costs.wrong <= costs.fallback:
        # Not even a wrong answer costs more than falling back.
        return 0.0
    breaks_even = (costs.wrong - costs.fallback) / (costs.wrong - costs.right)
    return binomial_tail(right, accepted, breaks_even)


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """Return the probability of at least so many successes."""
    if successes <= 0:
        return 1.0
    if successes > trials:
        return 0.0
    if probability >= 1:
        return 1.0
    if probability <= 0:
        return 0.0
    if successes <= trials * probability:
        # The other tail is the one whose first term is its largest.
        return 1.0 - binomial_tail(trials - successes + 1, trials, 1 - probability)
    odds = probability / (1 - probability)
    term = math.exp(
        math.lgamma(trials + 1)
        - math.lgamma(successes + 1)
        - math.lgamma(trials - successes + 1)
        + successes * math.log(probability)
        + (trials - successes) * math.log1p(-probability)
    )
    terms = [term]
    for count in range(successes, trials):
        term *= odds * (trials - count) / (count + 1)
        terms.append(term)
    return min(1.0, math.fsum(terms))


def lower_bound(successes: int, trials: int, *, risk: float = RISK) -> float:
    """Return the Clopper-Pearson lower bound of a share, one-sided, at a level of 1 - `risk`.

    Source: C. Clopper, E. Pearson, "The use of confidence or fiducial limits illustrated in the
    case of the binomial", Biometrika 26 (1934).
    """
    if successes == 0:
        return 0.0
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if binomial_tail(successes, trials, middle) < risk:
            low = middle
        else:
            high = middle
    return low
