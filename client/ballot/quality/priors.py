"""What a model favours each place in a list of options by, so that it can be taken off again.

Source: C. Zheng et al., "Large Language Models Are Not Robust Multiple Choice Selectors" (PriDe),
ICLR 2024: the prior of each answer slot is what is left of its log-probabilities once options are
permuted through it. A run of two orders permutes them in one way, by turning the list around. Over
both orders a slot and its mirror image have held the same options, so what tells the two apart is
the place alone; what they have in common is not told from the options, and is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ballot.quality.resampling import Change, change_of_means

Logits = tuple[float, ...]


@dataclass(frozen=True)
class Pair:
    """The raw logits of both orders, in the declared one, the right option, the group and kind."""

    kind: str
    group: str
    declared: Logits
    turned: Logits
    expected: int

    def without(self, prior: Logits) -> Pair:
        """Return the pair with the prior of the slots taken off."""
        return replace(
            self,
            declared=tuple(
                logit - place for logit, place in zip(self.declared, prior, strict=True)
            ),
            turned=tuple(
                logit - place for logit, place in zip(self.turned, prior[::-1], strict=True)
            ),
        )

    @property
    def flips(self) -> bool:
        """Whether the orders put different options first."""
        return _best(self.declared) != _best(self.turned)

    @property
    def share_right(self) -> float:
        """The share of the orders that put the right option first."""
        return sum(_best(one) == self.expected for one in (self.declared, self.turned)) / 2


@dataclass(frozen=True)
class PriorFit:
    """The prior of lists of so many options, and what came of it out of fold.

    `kinds` are those of the decisions that it was fitted on, the only ones that it is for.
    `sensitivity` is the share of decisions that flip when their options are turned around, before
    and after; the accuracies are over both orders. `verdict` is `kept`, `no_gain`, `less_accurate`
    or `too_few`; `log_prior` has the logarithm that is taken off each slot's logit.
    """

    options: int
    kinds: tuple[str, ...]
    examples: int
    groups: int
    verdict: str
    log_prior: Logits = ()
    sensitivity: Change | None = None
    accuracy: tuple[float, float] | None = None


def kinds_of(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return the kinds that occur among the pairs, in order."""
    return tuple(sorted({pair.kind for pair in pairs}))


def fit_prior(pairs: Sequence[Pair]) -> Logits:
    """Return the log prior of each slot; it is the opposite in the mirror image's.

    The pairs have equally many options.
    """
    size = len(pairs[0].declared)
    means = [
        math.fsum(pair.declared[slot] + pair.turned[size - 1 - slot] for pair in pairs)
        / (2 * len(pairs))
        for slot in range(size)
    ]
    return tuple((one - other) / 2 for one, other in zip(means, reversed(means), strict=True))


def judge_prior(
    pairs: Sequence[Pair], folds: Sequence[int], *, seed: int, level: float
) -> tuple[PriorFit, list[Pair]]:
    """Fit a prior, and try it on answers that took no part in the fit; those are returned too.

    `folds` has the fold of each pair; there are at least two, and a group is in one alone.
    It is kept if fewer of them flip, with an interval at `level` that does not reach 0, and no
    fewer are right.
    """
    held_out = _out_of_fold(pairs, folds)
    groups = [pair.group for pair in pairs]
    sensitivity = change_of_means(
        [float(pair.flips) for pair in pairs],
        [float(pair.flips) for pair in held_out],
        groups,
        seed=seed,
        level=level,
    )
    before, after = (
        math.fsum(pair.share_right for pair in side) / len(side) for side in (pairs, held_out)
    )
    if sensitivity.gain.low <= 0:
        verdict = "no_gain"
    else:
        verdict = "kept" if after >= before else "less_accurate"
    fit = PriorFit(
        options=len(pairs[0].declared),
        kinds=kinds_of(pairs),
        examples=len(pairs),
        groups=len(set(groups)),
        verdict=verdict,
        log_prior=fit_prior(pairs),
        sensitivity=sensitivity,
        accuracy=(before, after),
    )
    return fit, held_out


def _out_of_fold(pairs: Sequence[Pair], folds: Sequence[int]) -> list[Pair]:
    priors = {
        fold: fit_prior([pair for pair, other in zip(pairs, folds, strict=True) if other != fold])
        for fold in set(folds)
    }
    return [pair.without(priors[fold]) for pair, fold in zip(pairs, folds, strict=True)]


def _best(logits: Logits) -> int:
    return logits.index(max(logits))
