"""Temperatures that make probabilities mean what they say, fitted on a run's labelled decisions.

Source: C. Guo et al., "On calibration of modern neural networks", ICML 2017. A calibration is
claimed only where answers that took no part in the fit show it: out of fold, with an interval.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

from ballot.quality.priors import Pair, PriorFit, judge_prior, kinds_of
from ballot.quality.resampling import (
    Change,
    Interval,
    change_of_calibration_error,
    change_of_means,
)
from ballot.quality.runs import Row, Run, Served
from ballot.quality.statistics import log_loss

VERSION = 1
ANY_KIND = "any"
# The adapter takes no others: beyond these, what is left is a coin or the largest logit.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.05, 20.0
# Of fewer, even the 95 % interval of the temperature is as a rule wider than a factor of 1.5 each
# way, which no gain that is worth having outweighs.
LEAST_EXAMPLES = 100
# A group is one observation for the intervals, and stands in one fold alone.
LEAST_GROUPS = 20
FOLDS = 10
# Of calibrations whose data need none, at most this share may claim a gain.
FALSE_CLAIMS = 0.05
# Counts of options that are looked at apart from each other where there are enough examples.
BANDS = ((2, 2), (3, 5), (6, 10), (11, 26), (27, 255))
_DEVIATE = NormalDist().inv_cdf(0.975)
# What a temperature is rounded to: far below what any data can tell.
_DIGITS = 4


def group_of(row: Row) -> str:
    """Return the group of a row; one without is a group of its own."""
    return f"id:{row.id}" if row.group is None else f"group:{row.group}"


@dataclass(frozen=True)
class Case:
    """An answered example as the fit sees it: raw logits, the index of the right one, its group."""

    kind: str
    group: str
    logits: tuple[float, ...]
    expected: int

    @classmethod
    def of(cls, row: Row, logits: tuple[float, ...]) -> Case:
        """Return the case of a row, by its logits: of one order, or the mean of both."""
        return cls(row.kind, group_of(row), logits, row.option_ids.index(row.expected))

    @cached_property
    def highest(self) -> float:
        """The largest logit."""
        return max(self.logits)

    def probabilities(self, temperature: float) -> tuple[float, ...]:
        """Return what the adapter would answer at `temperature`."""
        weights = [math.exp((logit - self.highest) / temperature) for logit in self.logits]
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)


@dataclass(frozen=True)
class Slice:
    """Decisions of one kind, or any, with so many options, and what came of fitting them.

    `verdict` is `kept`, `no_gain`, `too_few` or `at_bound`; where it is not `kept`, they get what
    the next wider slice has. `nll` compares with that, too. The interval of the temperature is at
    95 %, that of the gain at a level which all slices of a calibration share.
    """

    kind: str
    options: tuple[int, int]
    examples: int
    groups: int
    verdict: str
    temperature: Interval | None = None
    nll: Change | None = None

    @property
    def reason(self) -> str:
        """Why it was not kept, in words; empty where it was."""
        match self.verdict:
            case "too_few":
                return (
                    f"{self.examples} examples in {self.groups} groups; a temperature needs "
                    f"{LEAST_EXAMPLES} in {LEAST_GROUPS}, to be known to a factor of about 1.5"
                )
            case "at_bound":
                return (
                    "the best temperature is beyond what makes sense: nearly all answers are "
                    "right, or they are no better than chance"
                )
            case "no_gain":
                return "answers out of fold are not shown to get better"
            case _:
                return ""


@dataclass(frozen=True)
class Calibration:
    """What a run says about the priors of places and about temperatures.

    `orders` is the number of option orders that it is for. `nll` and `ece` are of all answers, each
    with a temperature, and a prior, that were fitted without its fold. What is kept was chosen on
    all answers.
    """

    run: Run
    orders: int
    slices: tuple[Slice, ...]
    priors: tuple[PriorFit, ...]
    nll: Change
    ece: Change

    @property
    def kept(self) -> tuple[Slice, ...]:
        """The slices whose temperature is worth applying."""
        return tuple(item for item in self.slices if item.verdict == "kept")

    @property
    def kept_priors(self) -> tuple[PriorFit, ...]:
        """The priors that are worth taking off."""
        return tuple(item for item in self.priors if item.verdict == "kept")

    @property
    def is_worth_it(self) -> bool:
        """Whether anything is kept; if not, there is no calibration."""
        return bool(self.kept or self.kept_priors)

    def file_text(self) -> str:
        """Return the calibration file: JSON without white space, for it has to fit a variable."""
        served = _served(self.run)
        content = {
            "version": VERSION,
            "model_sha256": served.model.sha256,
            "prompt_version": served.prompt_version,
            "layout": served.layout,
            "orders": self.orders,
            "temperatures": [_entry(item) for item in self.kept],
            **({"priors": [_prior(item) for item in self.kept_priors]} if self.kept_priors else {}),
            "fitted": {
                "data_sha256": self.run.manifest.settings.data_sha256,
                "examples": len(self.run.rows),
                "method": f"temperature by NLL, {FOLDS} folds",
                "out_of_fold": {"nll": _before_after(self.nll), "ece": _before_after(self.ece)},
            },
        }
        return json.dumps(content, separators=(",", ":"))


def _prior(item: PriorFit) -> dict[str, Any]:
    return {
        "kinds": list(item.kinds),
        "options": item.options,
        "log_prior": [round(place, _DIGITS) for place in item.log_prior],
    }


def _entry(item: Slice) -> dict[str, Any]:
    assert item.temperature is not None, "this is a bug: a kept slice has a temperature"
    return {
        "kind": item.kind,
        "options": list(item.options),
        "temperature": item.temperature.value,
    }


def _before_after(change: Change) -> list[float]:
    return [round(change.before, _DIGITS), round(change.after, _DIGITS)]


# --- one temperature


def fit_temperature(cases: Sequence[Case]) -> float:
    """Return the temperature with the least negative log-likelihood, within its bounds.

    That is convex in 1/T, so its slope has one root, which bisection on log(1/T) cannot miss.
    """
    low, high = -math.log(MOST_TEMPERATURE), -math.log(LEAST_TEMPERATURE)
    if _slope(cases, math.exp(low)) >= 0:
        return MOST_TEMPERATURE
    if _slope(cases, math.exp(high)) <= 0:
        return LEAST_TEMPERATURE
    while high - low > 1e-6:
        middle = (low + high) / 2
        if _slope(cases, math.exp(middle)) < 0:
            low = middle
        else:
            high = middle
    return math.exp(-(low + high) / 2)


def _slope(cases: Sequence[Case], inverse: float) -> float:
    """Return the derivative of the negative log-likelihood by 1/T."""
    return math.fsum(_moments(case, inverse)[0] for case in cases)


def _moments(case: Case, inverse: float) -> tuple[float, float]:
    """Return the first and the second derivative of one case's negative log-likelihood by 1/T.

    They are the mean of the logits under their own softmax, less the right one, and the variance.
    """
    total = mean = square = 0.0
    for logit in case.logits:
        distance = logit - case.highest
        weight = math.exp(distance * inverse)
        total += weight
        mean += weight * distance
        square += weight * distance * distance
    mean /= total
    slope = mean - (case.logits[case.expected] - case.highest)
    return slope, max(0.0, square / total - mean * mean)


def temperature_interval(cases: Sequence[Case], temperature: float) -> Interval:
    """Return the temperature with its 95 % interval, symmetric in the logarithm.

    It is the sandwich estimator's, with the groups of the cases as what is independent.
    """
    inverse = 1 / temperature
    by_group: dict[str, float] = {}
    curvature = 0.0
    for case in cases:
        slope, variance = _moments(case, inverse)
        by_group[case.group] = by_group.get(case.group, 0.0) + slope
        curvature += variance
    groups = len(by_group)
    if groups < 2 or curvature <= 0:
        return Interval(temperature, LEAST_TEMPERATURE, MOST_TEMPERATURE)
    spread = math.fsum(slope * slope for slope in by_group.values()) * groups / (groups - 1)
    half = _DEVIATE * math.sqrt(spread) / curvature / inverse
    return Interval(
        round(temperature, _DIGITS),
        max(LEAST_TEMPERATURE, temperature * math.exp(-half)),
        min(MOST_TEMPERATURE, temperature * math.exp(half)),
    )


# --- a calibration


def calibrate(run: Run, *, seed: int = 0) -> Calibration:
    """Fit the temperatures of a run: of all kinds together, of each kind, of bands within it.

    A narrower slice is kept where its temperature beats the next wider one's out of fold, so that
    what little data there is for it is not spent on noise. The folds follow from a slice's groups
    alone; `seed` is that of the intervals' resampling.
    """
    cases = [Case.of(row, row.option_logits) for row in run.rows]
    return _calibrate(run, cases, cases, orders=_served(run).orders, priors=(), seed=seed)


def calibrate_one_order(run: Run, *, seed: int = 0) -> Calibration:
    """Fit, on a run of two orders, what one order needs: the priors of places, then temperatures.

    The first of the two orders is, bit for bit, what a request of one order is answered. A
    temperature is fitted without the fold that it is tried on, but on answers less priors that this
    fold took part in fitting and choosing: of priors and temperatures together, what is told out of
    fold may be slightly better than what the next answers show.
    """
    pairs = [_pair_of(row) for row in run.rows]
    priors, held_out = _fit_priors(pairs, seed)
    raw, without = (
        [Case.of(row, pair.declared) for row, pair in zip(run.rows, side, strict=True)]
        for side in (pairs, held_out)
    )
    return _calibrate(run, raw, without, orders=1, priors=priors, seed=seed)


def _pair_of(row: Row) -> Pair:
    declared, turned = (order.option_logits for order in row.orders)
    return Pair(row.kind, group_of(row), declared, turned, row.option_ids.index(row.expected))


def _fit_priors(pairs: Sequence[Pair], seed: int) -> tuple[tuple[PriorFit, ...], list[Pair]]:
    """Return what came of each number of options, and the pairs without the priors that are kept.

    Those have taken no part in the fit of what is taken off them, though in choosing what is kept.
    """
    members: dict[int, list[int]] = {}
    for index, pair in enumerate(pairs):
        members.setdefault(len(pair.declared), []).append(index)
    tests = sum(_is_enough([pairs[index].group for index in some]) for some in members.values())
    result, fits = list(pairs), []
    for options, some in sorted(members.items()):
        chosen = [pairs[index] for index in some]
        groups = [pair.group for pair in chosen]
        if not _is_enough(groups):
            fits.append(
                PriorFit(options, kinds_of(chosen), len(chosen), len(set(groups)), "too_few")
            )
            continue
        fit, held_out = judge_prior(
            chosen, folds_of(groups), seed=seed, level=1 - FALSE_CLAIMS / tests
        )
        fits.append(fit)
        if fit.verdict == "kept":
            for index, pair in zip(some, held_out, strict=True):
                result[index] = pair
    return tuple(fits), result


def _is_enough(groups: Sequence[str]) -> bool:
    return len(groups) >= LEAST_EXAMPLES and len(set(groups)) >= LEAST_GROUPS


def _calibrate(
    run: Run,
    raw: Sequence[Case],
    cases: Sequence[Case],
    *,
    orders: int,
    priors: tuple[PriorFit, ...],
    seed: int,
) -> Calibration:
    """Fit temperatures on `cases`, and hold what comes of them against `raw`."""
    search = _Search(cases, seed)
    slices = search.run()
    before = [case.probabilities(1.0) for case in raw]
    after = [
        case.probabilities(temperature)
        for case, temperature in zip(cases, search.out_of_fold, strict=True)
    ]
    groups = [case.group for case in cases]
    return Calibration(
        run=run,
        orders=orders,
        slices=slices,
        priors=priors,
        nll=change_of_means(
            [_loss(case, one) for case, one in zip(raw, before, strict=True)],
            [_loss(case, one) for case, one in zip(cases, after, strict=True)],
            groups,
            seed=seed,
        ),
        ece=change_of_calibration_error(
            [_judged(case, one) for case, one in zip(raw, before, strict=True)],
            [_judged(case, one) for case, one in zip(cases, after, strict=True)],
            groups,
            seed=seed,
        ),
    )


def _judged(case: Case, probabilities: Sequence[float]) -> tuple[float, bool]:
    return max(probabilities), case.logits[case.expected] == case.highest


def _served(run: Run) -> Served:
    assert run.manifest.served is not None, "this is a bug: a run with answers says who gave them"
    return run.manifest.served


def _loss(case: Case, probabilities: Sequence[float]) -> float:
    return log_loss(probabilities[case.expected])


class _Search:
    """Goes from the widest slice to the narrowest, and keeps those that are worth it.

    `out_of_fold` has a temperature for each case, which was fitted on other groups than its own.
    """

    def __init__(self, cases: Sequence[Case], seed: int) -> None:
        self._cases = cases
        self._seed = seed
        self.out_of_fold = [1.0] * len(cases)

    def run(self) -> tuple[Slice, ...]:
        wanted = list(_slices(self._cases))
        tests = sum(self._is_enough(members) for _, _, members in wanted)
        level = 1 - FALSE_CLAIMS / max(1, tests)
        return tuple(self._try(kind, options, members, level) for kind, options, members in wanted)

    def _is_enough(self, members: Sequence[int]) -> bool:
        return _is_enough([self._cases[index].group for index in members])

    def _try(
        self, kind: str, options: tuple[int, int], members: Sequence[int], level: float
    ) -> Slice:
        cases = [self._cases[index] for index in members]
        groups = [case.group for case in cases]
        size = (len(cases), len(set(groups)))
        if not self._is_enough(members):
            return Slice(kind, options, *size, "too_few")
        temperature = fit_temperature(cases)
        if temperature in (LEAST_TEMPERATURE, MOST_TEMPERATURE):
            return Slice(kind, options, *size, "at_bound")
        held_out = self._fit_out_of_fold(members)
        nll = change_of_means(
            [self._loss_at(index, self.out_of_fold[index]) for index in members],
            [self._loss_at(index, held_out[index]) for index in members],
            groups,
            seed=self._seed,
            level=level,
        )
        is_kept = nll.gain.low > 0
        if is_kept:
            for index in members:
                self.out_of_fold[index] = held_out[index]
        return Slice(
            kind,
            options,
            *size,
            "kept" if is_kept else "no_gain",
            temperature_interval(cases, temperature),
            nll,
        )

    def _fit_out_of_fold(self, members: Sequence[int]) -> dict[int, float]:
        # In folds of the whole run, all members might stand in one, and none be left to fit on.
        folds = folds_of([self._cases[index].group for index in members])
        placed = list(zip(members, folds, strict=True))
        temperatures = {
            fold: fit_temperature([self._cases[index] for index, other in placed if other != fold])
            for fold in set(folds)
        }
        return {index: temperatures[fold] for index, fold in placed}

    def _loss_at(self, index: int, temperature: float) -> float:
        case = self._cases[index]
        return _loss(case, case.probabilities(temperature))


def _slices(cases: Sequence[Case]) -> Iterator[tuple[str, tuple[int, int], list[int]]]:
    """Yield kind, band and members of each slice, the widest first; none is there twice."""
    everything = list(range(len(cases)))
    kinds = sorted({case.kind for case in cases})
    if len(kinds) > 1:
        yield ANY_KIND, _span(cases, everything), everything
    for kind in kinds:
        members = [index for index in everything if cases[index].kind == kind]
        yield kind, _span(cases, members), members
        for band in BANDS:
            inside = [index for index in members if band[0] <= len(cases[index].logits) <= band[1]]
            if 0 < len(inside) < len(members):
                yield kind, _span(cases, inside), inside


def _span(cases: Sequence[Case], members: Sequence[int]) -> tuple[int, int]:
    """Return the fewest and the most options there are: of others, nothing is known."""
    counts = [len(cases[index].logits) for index in members]
    return min(counts), max(counts)


def folds_of(groups: Sequence[str]) -> list[int]:
    """Return a fold for each of `groups`, the same for the same group, of about equal sizes.

    It depends on the names and the sizes of the groups, not on their order. Of `LEAST_GROUPS` and
    more, no fold is empty.
    """
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group] = sizes.get(group, 0) + 1
    filled = [0] * FOLDS
    chosen: dict[str, int] = {}
    for group in sorted(sizes, key=lambda name: (-sizes[name], _digest(name))):
        fold = filled.index(min(filled))
        chosen[group] = fold
        filled[fold] += sizes[group]
    return [chosen[group] for group in groups]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
