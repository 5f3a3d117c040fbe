"""Runs side by side: a line for each, every run against the first, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ballot.errors import BallotError
from ballot.quality.figures import Judged, Report, report_of
from ballot.quality.runs import Row, Run
from ballot.quality.statistics import mcnemar

FORMAT = 1


class ComparisonError(BallotError):
    """Runs that cannot be compared: fewer than two, or two with the same name."""


@dataclass(frozen=True)
class Against:
    """A run against the first, on the `common` examples: the same id, options and right answer.

    Both sides are compared as accuracy counts: no answer is a wrong one. `p_value` is of McNemar's
    exact test, two-sided. `options_differ` says that some examples with one id are not the same.
    """

    name: str
    common: int
    both_right: int
    only_first_right: int
    only_this_right: int
    both_wrong: int
    p_value: float
    other_examples: int
    same_data: bool


@dataclass(frozen=True)
class Answer:
    """What a run answered: the option and its probability, and what the expected one got."""

    option: str
    probability: float
    expected_probability: float
    is_correct: bool


@dataclass(frozen=True)
class Difference:
    """An example that not every run answers alike; a run's answer is None where it got none."""

    id: str
    family: str | None
    expected: str
    answers: tuple[Answer | None, ...]

    @property
    def spread(self) -> float:
        """How far apart the runs' probabilities of the expected option are."""
        given = [one.expected_probability for one in self.answers if one]
        return max(given) - min(given) if given else 0.0


@dataclass(frozen=True)
class Comparison:
    """Runs by name, each with its report; `differences` begin with those furthest apart."""

    format: int
    names: tuple[str, ...]
    reports: tuple[Report, ...]
    against_first: tuple[Against, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class _Outcome:
    """How an example ended in a run; `options` is None where nothing was answered."""

    expected: str
    family: str | None
    options: frozenset[str] | None
    judged: Judged | None

    @property
    def is_correct(self) -> bool:
        return self.judged is not None and self.judged.is_correct

    def is_of(self, other: _Outcome) -> bool:
        """Return whether both are of one example, as far as the answers tell."""
        known = None not in (self.options, other.options)
        return self.expected == other.expected and not (known and self.options != other.options)


def compare(runs: Mapping[str, Run]) -> Comparison:
    """Compare runs by name with the first of them.

    Raises:
        ComparisonError: there are fewer than two.
    """
    if len(runs) < 2:
        raise ComparisonError("a comparison needs two runs", code="too_few_runs")
    outcomes = [_outcomes(run) for run in runs.values()]
    names = tuple(runs)
    digests = [run.manifest.settings.data_sha256 for run in runs.values()]
    return Comparison(
        format=FORMAT,
        names=names,
        reports=tuple(map(report_of, runs.values())),
        against_first=tuple(
            _against(name, outcomes[0], other, same_data=digest == digests[0])
            for name, other, digest in zip(names[1:], outcomes[1:], digests[1:], strict=True)
        ),
        differences=_differences(outcomes),
    )


def _outcomes(run: Run) -> dict[str, _Outcome]:
    answered = {row.id: _answered(row) for row in run.rows}
    return answered | {
        failure.id: _Outcome(failure.expected, failure.family, None, None)
        for failure in run.failures
    }


def _answered(row: Row) -> _Outcome:
    return _Outcome(row.expected, row.family, frozenset(row.option_ids), Judged.of(row))


def _against(
    name: str, first: Mapping[str, _Outcome], other: Mapping[str, _Outcome], *, same_data: bool
) -> Against:
    shared = [id for id in first if id in other]
    pairs = [(first[id], other[id]) for id in shared if first[id].is_of(other[id])]
    right = [(one.is_correct, two.is_correct) for one, two in pairs]
    only_first, only_this = right.count((True, False)), right.count((False, True))
    return Against(
        name=name,
        common=len(pairs),
        both_right=right.count((True, True)),
        only_first_right=only_first,
        only_this_right=only_this,
        both_wrong=right.count((False, False)),
        p_value=mcnemar(only_first, only_this),
        other_examples=len(shared) - len(pairs),
        same_data=same_data,
    )


def _differences(outcomes: Sequence[Mapping[str, _Outcome]]) -> tuple[Difference, ...]:
    """Return the examples that all runs have and not all answer alike."""
    first, *others = outcomes
    shared = [
        id
        for id, outcome in first.items()
        if all(id in other and outcome.is_of(other[id]) for other in others)
    ]
    found = [
        Difference(
            id=id,
            family=first[id].family,
            expected=first[id].expected,
            answers=tuple(_answer(outcome[id].judged) for outcome in outcomes),
        )
        for id in shared
        if len({_given(outcome[id].judged) for outcome in outcomes}) > 1
    ]
    return tuple(sorted(found, key=lambda difference: (-difference.spread, difference.id)))


def _given(judged: Judged | None) -> str | None:
    return judged.predicted if judged else None


def _answer(judged: Judged | None) -> Answer | None:
    if judged is None:
        return None
    return Answer(
        option=judged.predicted,
        probability=judged.confidence,
        expected_probability=judged.expected_probability,
        is_correct=judged.is_correct,
    )
