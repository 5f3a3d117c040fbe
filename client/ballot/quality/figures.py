"""What a run says about the decisions in it: every figure of a report, from the run's answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ballot.quality.runs import Failure, Manifest, Row, Run
from ballot.quality.statistics import (
    STRICTLY_VALID_WITHIN,
    Bin,
    Coverage,
    Mean,
    Percentiles,
    Share,
    brier,
    calibration_error,
    calibration_error_by_chance,
    equal_count_bins,
    equal_width_bins,
    is_valid,
    log_loss,
    mean,
    percentile,
    predicted,
    selective_accuracy,
)

FORMAT = 1
LOW_MASS = 0.5
_SHORTEST_BAND = 128


@dataclass(frozen=True)
class Judged:
    """An answer held against what was expected.

    An answer whose probabilities are none, `is_valid` says, counts as wrong and for nothing else.
    """

    row: Row
    predicted: str
    confidence: float
    is_valid: bool
    is_correct: bool

    @classmethod
    def of(cls, row: Row) -> Judged:
        """Judge an answer."""
        best, valid = predicted(row.option_ids, row.probabilities), is_valid(row.probabilities)
        return cls(
            row=row,
            predicted=best,
            confidence=max(row.probabilities),
            is_valid=valid,
            is_correct=valid and best == row.expected,
        )

    @property
    def expected_index(self) -> int:
        """Where the expected option stands."""
        return self.row.option_ids.index(self.row.expected)

    @property
    def expected_probability(self) -> float:
        """What the expected option got."""
        return self.row.probabilities[self.expected_index]


@dataclass(frozen=True)
class Group:
    """The examples of one kind or family; those without an answer are in the share as wrong."""

    name: str
    correct: Share
    mean_confidence: float | None
    log_loss: float | None


@dataclass(frozen=True)
class Calibration:
    """How far confidences can be read as chances to be right, in two binnings.

    `error` is over `bins`, ten of equal width; `equal_count_error` over `equal_count_bins`, ten of
    about as many answers. `error_by_chance` is what `error` stays under 95 times in 100 if every
    confidence is true.
    """

    error: float | None
    error_by_chance: float | None
    bins: tuple[Bin, ...]
    equal_count_error: float | None
    equal_count_bins: tuple[Bin, ...]


@dataclass(frozen=True)
class Confusion:
    """What was answered for what, among decisions with the same options.

    `counts[i][j]` are those where label i was expected and label j was answered.
    """

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    total: int


@dataclass(frozen=True)
class Orders:
    """What the order of the options does: both were scored, as declared and reversed.

    `flips` are the decisions whose answer is another in the other order; `mean_shift` is how far
    the expected option's probability moves, on average.
    """

    flips: Share
    correct_as_declared: Share
    correct_reversed: Share
    correct_averaged: Share
    mean_shift: float


@dataclass(frozen=True)
class Timed:
    """One answer's input tokens, and the seconds it took."""

    input_tokens: int
    client_seconds: float
    container_seconds: float


@dataclass(frozen=True)
class Band:
    """The answers with at least `least_tokens` input tokens and fewer than `below_tokens`."""

    least_tokens: int
    below_tokens: int
    count: int
    client: Percentiles
    container: Percentiles


@dataclass(frozen=True)
class Latency:
    """Seconds as the caller waited and as the container worked, over all and by prompt length."""

    client: Percentiles | None
    container: Percentiles | None
    bands: tuple[Band, ...]
    answers: tuple[Timed, ...]


@dataclass(frozen=True)
class Tokens:
    """Input tokens of the answers: all, those found in memory, and how many an answer has."""

    input: int
    cached: int
    per_answer: float | None


@dataclass(frozen=True)
class Mass:
    """The allowed token mass: median, 5th percentile, the least, and the share below a half."""

    p50: float
    p5: float
    least: float
    low: Share


@dataclass(frozen=True)
class Cost:
    """What 1,000 decisions cost when they are asked as this run asked them.

    `hourly_price` is of all that serves the endpoint; by Little's law a decision takes the time
    that its caller waits, divided by how many wait at a time.
    """

    hourly_price: float
    seconds_per_decision: float
    per_thousand: float


@dataclass(frozen=True)
class Wrong:
    """A wrong answer, with its options in the order declared."""

    id: str
    kind: str
    family: str | None
    group: str | None
    expected: str
    predicted: str
    option_ids: tuple[str, ...]
    probabilities: tuple[float, ...]
    allowed_token_mass: float
    is_valid: bool

    @classmethod
    def of(cls, judged: Judged) -> Wrong:
        """Return what is told of a wrong answer."""
        row = judged.row
        return cls(
            id=row.id,
            kind=row.kind,
            family=row.family,
            group=row.group,
            expected=row.expected,
            predicted=judged.predicted,
            option_ids=row.option_ids,
            probabilities=row.probabilities,
            allowed_token_mass=row.allowed_token_mass,
            is_valid=judged.is_valid,
        )


@dataclass(frozen=True)
class Report:
    """Every figure of a run; `report.json` has the same fields.

    `answered` are the examples with a valid answer. In `accuracy` and the groups the others count
    as wrong; all other figures are of the answered ones. `guessing` is how often a guess among the
    options is right. `wrong` begins with the most confident.
    """

    format: int
    manifest: Manifest
    answered: Share
    strictly_valid: Share
    accuracy: Share
    guessing: float | None
    macro_by_kind: float | None
    macro_by_family: float | None
    by_kind: tuple[Group, ...]
    by_family: tuple[Group, ...]
    mean_confidence: float | None
    log_loss: Mean
    brier: Mean
    calibration: Calibration
    selective: tuple[Coverage, ...]
    confusion: tuple[Confusion, ...]
    orders: Orders | None
    latency: Latency
    tokens: Tokens
    mass: Mass | None
    cost: Cost | None
    wrong: tuple[Wrong, ...]
    unanswered: tuple[Failure, ...]


def report_of(run: Run, *, hourly_price: float | None = None) -> Report:
    """Return the figures of a run; the cost where the caller says what an hour costs."""
    judged = tuple(map(Judged.of, run.rows))
    valid = [one for one in judged if one.is_valid]
    rows = [one.row for one in valid]
    asked = len(run.rows) + len(run.failures)
    by_kind = _groups(judged, run.failures, lambda one: one.kind)
    by_family = _groups(judged, run.failures, lambda one: one.family)
    confidences = [one.confidence for one in valid]
    correct = [one.is_correct for one in valid]
    wrong = sorted((one for one in judged if not one.is_correct), key=lambda one: -one.confidence)
    strict = sum(is_valid(row.probabilities, within=STRICTLY_VALID_WITHIN) for row in rows)
    return Report(
        format=FORMAT,
        manifest=run.manifest,
        answered=Share.of(len(valid), asked),
        strictly_valid=Share.of(strict, asked),
        accuracy=Share.of(sum(correct), asked),
        guessing=mean([1 / len(row.option_ids) for row in rows]),
        macro_by_kind=_macro(by_kind),
        macro_by_family=_macro(by_family),
        by_kind=by_kind,
        by_family=by_family,
        mean_confidence=mean(confidences),
        log_loss=Mean.of([log_loss(one.expected_probability) for one in valid]),
        brier=Mean.of([brier(one.row.probabilities, one.expected_index) for one in valid]),
        calibration=_calibration(confidences, correct),
        selective=selective_accuracy(confidences, correct),
        confusion=_confusion(valid),
        orders=_orders(rows),
        latency=_latency(rows),
        tokens=_tokens(rows),
        mass=_mass(rows),
        cost=_cost(run, rows, hourly_price),
        wrong=tuple(map(Wrong.of, wrong)),
        unanswered=run.failures,
    )


def _groups(
    judged: Iterable[Judged],
    failures: Iterable[Failure],
    name_of: Callable[[Row | Failure], str | None],
) -> tuple[Group, ...]:
    """Return the named groups in the order of their names."""
    answers: dict[str, list[Judged]] = {}
    totals: dict[str, int] = {}
    for one in judged:
        if name := name_of(one.row):
            answers.setdefault(name, []).append(one)
            totals[name] = totals.get(name, 0) + 1
    for failure in failures:
        if name := name_of(failure):
            totals[name] = totals.get(name, 0) + 1
    return tuple(_group(name, answers.get(name, []), totals[name]) for name in sorted(totals))


def _group(name: str, answers: Sequence[Judged], total: int) -> Group:
    valid = [one for one in answers if one.is_valid]
    return Group(
        name=name,
        correct=Share.of(sum(one.is_correct for one in valid), total),
        mean_confidence=mean([one.confidence for one in valid]),
        log_loss=mean([log_loss(one.expected_probability) for one in valid]),
    )


def _macro(groups: Iterable[Group]) -> float | None:
    """Return the mean of the groups' accuracies: each counts the same, whatever its size."""
    return mean([one.correct.value for one in groups if one.correct.value is not None])


def _calibration(confidences: Sequence[float], correct: Sequence[bool]) -> Calibration:
    bins = equal_width_bins(confidences, correct)
    even = equal_count_bins(confidences, correct)
    return Calibration(
        error=calibration_error(bins),
        error_by_chance=calibration_error_by_chance(confidences),
        bins=bins,
        equal_count_error=calibration_error(even),
        equal_count_bins=even,
    )


def _confusion(judged: Iterable[Judged]) -> tuple[Confusion, ...]:
    """Return a matrix for each set of options, the one with the most decisions first.

    The labels stand as the first decision with these options declared them.
    """
    pairs: dict[frozenset[str], list[tuple[str, str]]] = {}
    labels: dict[frozenset[str], tuple[str, ...]] = {}
    for one in judged:
        options = frozenset(one.row.option_ids)
        labels.setdefault(options, one.row.option_ids)
        pairs.setdefault(options, []).append((one.row.expected, one.predicted))
    matrices = [_matrix(labels[options], pairs[options]) for options in pairs]
    return tuple(sorted(matrices, key=lambda matrix: (-matrix.total, matrix.labels)))


def _matrix(labels: tuple[str, ...], pairs: Sequence[tuple[str, str]]) -> Confusion:
    seen = Counter(pairs)
    counts = tuple(tuple(seen[row, column] for column in labels) for row in labels)
    return Confusion(labels=labels, counts=counts, total=len(pairs))


def _orders(rows: Iterable[Row]) -> Orders | None:
    both = [row for row in rows if len(row.orders) == 2]
    if not both:
        return None
    answers = [
        [predicted(row.option_ids, order.probabilities) for order in row.orders] for row in both
    ]
    shifts = [
        abs(first - second)
        for row in both
        for first, second in [[_expected(row, order.probabilities) for order in row.orders]]
    ]
    averaged = [predicted(row.option_ids, row.probabilities) for row in both]

    def right(given: Iterable[str]) -> Share:
        hits = sum(one == row.expected for one, row in zip(given, both, strict=True))
        return Share.of(hits, len(both))

    return Orders(
        flips=Share.of(sum(first != second for first, second in answers), len(both)),
        correct_as_declared=right(first for first, _ in answers),
        correct_reversed=right(second for _, second in answers),
        correct_averaged=right(averaged),
        mean_shift=math.fsum(shifts) / len(shifts),
    )


def _expected(row: Row, probabilities: Sequence[float]) -> float:
    return probabilities[row.option_ids.index(row.expected)]


def _latency(rows: Sequence[Row]) -> Latency:
    return Latency(
        client=Percentiles.of([row.client_seconds for row in rows]),
        container=Percentiles.of([row.container_seconds for row in rows]),
        bands=_bands(rows),
        answers=tuple(
            Timed(row.input_tokens, row.client_seconds, row.container_seconds) for row in rows
        ),
    )


def _bands(rows: Iterable[Row]) -> tuple[Band, ...]:
    """Return the answers by prompt length; each band but the first ends at twice its start."""
    inside: dict[int, list[Row]] = {}
    for row in rows:
        doublings = (row.input_tokens // _SHORTEST_BAND).bit_length()
        inside.setdefault(doublings, []).append(row)
    bands = []
    for doublings, members in sorted(inside.items()):
        client = Percentiles.of([row.client_seconds for row in members])
        container = Percentiles.of([row.container_seconds for row in members])
        assert client is not None
        assert container is not None
        below = _SHORTEST_BAND << doublings
        least = below // 2 if doublings else 0
        bands.append(Band(least, below, len(members), client, container))
    return tuple(bands)


def _tokens(rows: Sequence[Row]) -> Tokens:
    return Tokens(
        input=sum(row.input_tokens for row in rows),
        cached=sum(row.cached_tokens for row in rows),
        per_answer=mean([row.input_tokens for row in rows]),
    )


def _mass(rows: Sequence[Row]) -> Mass | None:
    ordered = sorted(row.allowed_token_mass for row in rows)
    if not ordered:
        return None
    return Mass(
        p50=percentile(ordered, 0.5),
        p5=percentile(ordered, 0.05),
        least=ordered[0],
        low=Share.of(sum(one < LOW_MASS for one in ordered), len(ordered)),
    )


def _cost(run: Run, valid: Sequence[Row], hourly_price: float | None) -> Cost | None:
    if hourly_price is None or not valid:
        return None
    waited = math.fsum(
        [row.client_seconds for row in run.rows] + [one.client_seconds for one in run.failures]
    )
    seconds = waited / run.manifest.settings.concurrency / len(valid)
    return Cost(hourly_price, seconds, hourly_price * seconds * 1000 / 3600)
