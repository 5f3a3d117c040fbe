"""The statistics against scikit-learn, scipy and numpy, on random and on degenerate data."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.calibration
import sklearn.metrics

from ballot.quality.statistics import (
    Bin,
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
    mcnemar,
    percentile,
    predicted,
    selective_accuracy,
)
from tests.made_runs import softmax

# Confidences and whether they were right: drawn, and everything that could be a corner.
DRAWN = random.Random(6)
SAMPLES: dict[str, list[tuple[float, bool]]] = {
    "drawn": [(p, DRAWN.random() < p) for p in (DRAWN.uniform(0.2, 1) for _ in range(500))],
    "few": [(p, DRAWN.random() < p) for p in (DRAWN.uniform(0.2, 1) for _ in range(7))],
    "one right": [(0.8, True)],
    "one wrong": [(0.8, False)],
    "certain and right": [(1.0, True)] * 20,
    "certain and wrong": [(1.0, False)] * 20,
    "constant": [(0.5, index % 3 == 0) for index in range(30)],
    "on the edges": [(index / 10, index % 2 == 0) for index in range(11) for _ in range(index + 1)],
    "ties": [(DRAWN.choice((0.3, 0.7, 0.9)), DRAWN.random() < 0.6) for _ in range(100)],
    "empty bins": [(0.05, False), (0.07, True), (0.97, True), (0.99, True)],
}
each_sample = pytest.mark.parametrize("name", SAMPLES)


def split(name: str) -> tuple[list[float], list[bool]]:
    """Return a sample's confidences, and whether each was right."""
    confidences, correct = zip(*SAMPLES[name], strict=True)
    return list(confidences), list(correct)


def drawn_distributions(count: int, options: int, *, seed: int) -> tuple[Any, list[int]]:
    """Return distributions and the index of the right option of each."""
    draw = random.Random(seed)
    rows = [softmax([draw.gauss(0, 3) for _ in range(options)]) for _ in range(count)]
    return np.array(rows), [draw.randrange(options) for _ in range(count)]


@pytest.mark.parametrize(
    ("count", "total"), [(0, 1), (1, 1), (0, 20), (20, 20), (1, 2), (179, 231), (7, 9000)]
)
def test_intervals_of_shares_are_scipys_wilson_intervals(count: int, total: int) -> None:
    theirs = scipy.stats.binomtest(count, total).proportion_ci(0.95, method="wilson")

    share = Share.of(count, total)

    assert share.value == count / total
    assert (share.low, share.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_the_ends_of_an_interval_are_exact_where_all_or_none_are() -> None:
    assert [Share.of(0, n).low for n in range(1, 200)] == [0.0] * 199
    assert [Share.of(n, n).high for n in range(1, 200)] == [1.0] * 199


def test_of_nothing_a_share_is_unknown() -> None:
    assert Share.of(0, 0) == Share(0, 0, None, 0.0, 1.0)


@pytest.mark.parametrize("count", [2, 3, 50])
def test_intervals_of_means_are_scipys(count: int) -> None:
    values = [DRAWN.expovariate(1) for _ in range(count)]
    low, high = scipy.stats.norm.interval(0.95, np.mean(values), scipy.stats.sem(values))

    found = Mean.of(values)

    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))


def test_means_of_one_value_and_of_none_claim_no_interval() -> None:
    assert Mean.of([0.25]) == Mean(0.25, None, None)
    assert Mean.of([]) == Mean(None, None, None)


@pytest.mark.parametrize("options", [2, 3, 10])
def test_log_loss_and_brier_score_are_scikit_learns(options: int) -> None:
    rows, expected = drawn_distributions(200, options, seed=options)
    labels = list(range(options))
    chances = [row[index] for row, index in zip(rows, expected, strict=True)]
    distances = [brier(row, index) for row, index in zip(rows, expected, strict=True)]

    assert np.mean([log_loss(chance) for chance in chances]) == pytest.approx(
        sklearn.metrics.log_loss(expected, rows, labels=labels)
    )
    assert np.mean(distances) == pytest.approx(
        sklearn.metrics.brier_score_loss(expected, rows, labels=labels, scale_by_half=False)
    )


@pytest.mark.parametrize("probability", [0.0, 1e-300, 1e-16, 0.5, 1.0])
def test_the_log_loss_of_the_impossible_is_what_scikit_learn_says(probability: float) -> None:
    theirs = sklearn.metrics.log_loss([1], [[1 - probability, probability]], labels=[0, 1])

    assert log_loss(probability) == pytest.approx(theirs, abs=1e-15)
    assert log_loss(0.0) == -math.log(2.0**-52)


@pytest.mark.parametrize(
    ("probabilities", "expected", "score"),
    [((1.0, 0.0), 0, 0.0), ((0.0, 1.0), 0, 2.0), ((0.5, 0.5), 1, 0.5), ((0.25,) * 4, 3, 0.75)],
)
def test_brier_scores_of_certain_and_uniform_answers(
    probabilities: Sequence[float], expected: int, score: float
) -> None:
    assert brier(probabilities, expected) == score


def bins_by_scikit_learn(
    confidences: list[float], correct: list[bool], strategy: str
) -> tuple[list[float], list[float]]:
    """Return the accuracies and the mean confidences of the bins that are not empty."""
    # With labels of one class it wants to be told which one is positive.
    accuracies, means = sklearn.calibration.calibration_curve(
        np.array(correct, dtype=int), confidences, pos_label=1, n_bins=10, strategy=strategy
    )
    return list(accuracies), list(means)


def curve(bins: Sequence[Bin]) -> tuple[list[float | None], list[float | None]]:
    """Return the same of ours."""
    filled = [one for one in bins if one.correct.total]
    return [one.correct.value for one in filled], [one.mean_confidence for one in filled]


@each_sample
def test_reliability_curves_are_scikit_learns(name: str) -> None:
    confidences, correct = split(name)
    even = equal_width_bins(confidences, correct)
    full = equal_count_bins(confidences, correct)

    for bins, strategy in ((even, "uniform"), (full, "quantile")):
        theirs = bins_by_scikit_learn(confidences, correct, strategy)
        ours = curve(bins)
        assert ours[0] == pytest.approx(theirs[0]), strategy
        assert ours[1] == pytest.approx(theirs[1]), strategy
    assert len(even) == 10


@each_sample
def test_the_calibration_error_is_numpys(name: str) -> None:
    confidences, correct = split(name)
    places = np.clip(np.ceil(np.round(np.array(confidences) * 10, 9)).astype(int) - 1, 0, 9)
    gaps = np.bincount(places, np.array(correct) - np.array(confidences), minlength=10)

    error = calibration_error(equal_width_bins(confidences, correct))

    assert error == pytest.approx(np.abs(gaps).sum() / len(confidences), abs=1e-12)


def test_known_calibration_errors() -> None:
    def error(pairs: list[tuple[float, bool]]) -> float | None:
        confidences, correct = zip(*pairs, strict=True)
        return calibration_error(equal_width_bins(confidences, correct))

    true = [(0.25, True)] + [(0.25, False)] * 3 + [(0.5, True), (0.5, False)]
    assert error(true) == 0.0
    assert error([(1.0, False)] * 5) == 1.0
    assert error([(1.0, True)] * 5) == 0.0
    # Both are in the bin up to 0.9, where 0.875 was said on average and a half was right.
    assert error([(0.85, True), (0.9, False)]) == pytest.approx(0.375)


def test_of_nothing_there_is_no_calibration_error() -> None:
    assert calibration_error(equal_width_bins([], [])) is None
    assert equal_count_bins([], []) == ()
    assert calibration_error(()) is None
    assert calibration_error_by_chance([]) is None


@each_sample
def test_no_figure_depends_on_the_order_of_the_data(name: str) -> None:
    pairs = SAMPLES[name]
    shuffled = random.Random(1).sample(pairs, len(pairs))
    first, second = (tuple(zip(*some, strict=True)) for some in (pairs, shuffled))

    for figure in (equal_width_bins, equal_count_bins, selective_accuracy):
        assert figure(*first) == figure(*second)
    assert calibration_error_by_chance(first[0]) == calibration_error_by_chance(second[0])


@each_sample
def test_the_error_by_chance_is_what_numpy_draws(name: str) -> None:
    confidences, _ = split(name)
    said = np.array(confidences)
    generator = np.random.default_rng(7)
    places = np.clip(np.ceil(np.round(said * 10, 9)).astype(int) - 1, 0, 9)
    errors = []
    for _ in range(4000):
        gaps = (generator.random(said.size) < said) - said
        errors.append(np.abs(np.bincount(places, gaps, minlength=10)).sum() / said.size)

    found = calibration_error_by_chance(confidences)

    # Each side draws; where there are few outcomes the percentile may be either of two.
    low, high = np.quantile(errors, [0.93, 0.97])
    assert found is not None
    assert low - 1e-9 <= found <= high + 1e-9


def test_true_confidences_pass_the_error_by_chance_about_one_time_in_twenty() -> None:
    draw = random.Random(12)
    passed = 0
    for _ in range(200):
        confidences = [draw.uniform(0.3, 1) for _ in range(60)]
        correct = [draw.random() < confidence for confidence in confidences]
        error = calibration_error(equal_width_bins(confidences, correct))
        chance = calibration_error_by_chance(confidences)
        assert error is not None
        assert chance is not None
        passed += error > chance

    # In 200 tries at 1 in 20 each, fewer than 2 or more than 20 come once in a thousand.
    assert 2 <= passed <= 20


@each_sample
def test_selective_accuracy_is_the_accuracy_above_each_confidence(name: str) -> None:
    confidences, correct = (np.array(values) for values in split(name))

    points = selective_accuracy(*split(name))

    assert [one.least_confidence for one in points] == sorted(set(confidences), reverse=True)
    for point in points:
        taken = confidences >= point.least_confidence
        assert point.coverage == pytest.approx(taken.mean())
        assert point.correct.value == pytest.approx(correct[taken].mean())
    assert points[-1].coverage == 1.0
    assert selective_accuracy([], []) == ()


@pytest.mark.parametrize("count", [1, 2, 3, 20, 101])
def test_percentiles_are_numpys(count: int) -> None:
    values = [DRAWN.expovariate(0.3) for _ in range(count)]

    found = Percentiles.of(values)

    assert found is not None
    assert [found.p50, found.p95, found.p99] == pytest.approx(np.percentile(values, [50, 95, 99]))
    assert found.mean == pytest.approx(np.mean(values))
    assert [percentile(sorted(values), part) for part in (0, 1)] == [min(values), max(values)]
    assert Percentiles.of([]) is None


@pytest.mark.parametrize(
    ("first", "second"), [(0, 0), (0, 1), (1, 0), (4, 4), (3, 12), (12, 3), (0, 40), (480, 620)]
)
def test_mcnemars_test_is_scipys_binomial_test(first: int, second: int) -> None:
    pairs = first + second
    theirs = scipy.stats.binomtest(first, pairs, 0.5).pvalue if pairs else 1.0

    assert mcnemar(first, second) == pytest.approx(theirs, rel=1e-9)


def test_mcnemars_test_bears_any_numbers() -> None:
    assert mcnemar(0, 5000) == 0.0
    assert mcnemar(5000, 5000) == 1.0


@pytest.mark.parametrize(
    ("option_ids", "probabilities", "best"),
    [
        ("no yes", (0.3, 0.7), "yes"),
        ("yes no", (0.5, 0.5), "no"),
        ("10 9", (0.5, 0.5), "10"),
        ("b a c", (0.4, 0.2, 0.4), "b"),
    ],
)
def test_of_equal_options_the_smallest_label_is_the_answer(
    option_ids: str, probabilities: Sequence[float], best: str
) -> None:
    assert predicted(option_ids.split(), probabilities) == best


@pytest.mark.parametrize(
    ("probabilities", "valid", "strictly"),
    [
        ((0.5, 0.5), True, True),
        ((0.5, 0.5009), True, True),
        ((0.5, 0.505), True, False),
        ((0.5, 0.519), True, False),
        ((0.5, 0.53), False, False),
        ((0.4, 0.5), False, False),
        ((1.1, -0.1), False, False),
    ],
)
def test_distributions_are_valid_within_jevbenchs_tolerance(
    probabilities: Sequence[float], valid: bool, strictly: bool
) -> None:
    assert is_valid(probabilities) is valid
    assert is_valid(probabilities, within=0.001) is strictly
