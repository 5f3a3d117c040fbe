"""Thresholds: exact bounds against scipy, and promises that are kept over many draws."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from scipy.stats import beta, binom

from ballot.quality.policy import MEASURES
from ballot.quality.runs import Row, Run
from ballot.quality.thresholds import (
    FALSE_SAVINGS,
    LEAST_EXAMPLES,
    RISK,
    Costs,
    ThresholdError,
    binomial_tail,
    lower_bound,
    policy_of,
    threshold_for_accuracy,
    threshold_for_costs,
)
from tests.labelled_runs import SERVED, row, run_of, surely_rows

DEGENERATE = [(0, 1), (1, 1), (0, 50), (50, 50), (1, 10_000), (10_000, 10_000), (9_990, 10_000)]
DRAWN = [
    (random.Random(seed).randint(0, trials), trials)
    for seed, trials in enumerate((2, 3, 10, 59, 100, 500, 2000))
]


@pytest.mark.parametrize(("successes", "trials"), DEGENERATE + DRAWN)
def test_the_lower_bound_is_a_beta_quantile(successes: int, trials: int) -> None:
    expected = 0.0 if successes == 0 else beta.ppf(RISK, successes, trials - successes + 1)
    assert lower_bound(successes, trials) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("probability", [0.0, 0.001, 0.3, 0.95, 0.999, 1.0])
@pytest.mark.parametrize(("successes", "trials"), DEGENERATE + DRAWN)
def test_the_tail_is_the_binomial_distributions(
    successes: int, trials: int, probability: float
) -> None:
    expected = float(binom.sf(successes - 1, trials, probability))
    found = binomial_tail(successes, trials, probability)
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-300)


# --- accuracy


def test_the_promise_is_kept_as_often_as_it_says() -> None:
    """Confidences are true and even from 0.5 to 1: those above 0.8 are right in 0.9.

    So a threshold below 0.8 breaks the promise. Of 100, 5 % may; 12 would be no chance.
    """
    seeds = range(100)
    assert binom.sf(11, len(seeds), RISK) < 0.005
    thresholds = []
    for seed in seeds:
        run = run_of(surely_rows(1600, seed=seed))
        try:
            found = threshold_for_accuracy(run, measure="confidence", target=0.9)
        except ThresholdError:
            continue
        thresholds.append(found.threshold)
    assert sum(threshold < 0.8 for threshold in thresholds) < 12
    # And it is worth something: most runs find one, not far above the best there is.
    assert len(thresholds) > 60
    assert statistics.median(thresholds) < 0.9


def test_what_is_told_is_of_the_held_out_half() -> None:
    found = threshold_for_accuracy(
        run_of(surely_rows(2000, seed=5)), measure="confidence", target=0.9
    )
    accepted = found.coverage.count
    assert found.examples == found.coverage.total == 1000
    assert found.accuracy is not None
    right = round(found.accuracy * accepted)
    assert found.accuracy == right / accepted
    assert found.least_accuracy == pytest.approx(beta.ppf(0.05, right, accepted - right + 1))
    assert found.least_accuracy >= 0.9
    # Of two options, a confidence c has a margin of 2c - 1; even confidences from 0.5 to 1.
    assert found.coverage.value == pytest.approx(2 * (1 - found.threshold), abs=0.05)


def test_a_margin_of_two_options_is_the_same_threshold() -> None:
    run = run_of(surely_rows(2000, seed=5))
    confidence, margin = (
        threshold_for_accuracy(run, measure=measure, target=0.9) for measure in MEASURES
    )
    assert margin.threshold == pytest.approx(2 * confidence.threshold - 1)
    assert margin.coverage == confidence.coverage


def test_answers_that_are_all_right_are_all_accepted() -> None:
    rows = [row(number, (2.0 + number / 500, 0.0), 0) for number in range(400)]
    found = threshold_for_accuracy(run_of(rows), measure="confidence", target=0.95)
    assert found.coverage.value is not None
    assert found.coverage.value > 0.97
    assert found.accuracy == 1


def test_equal_answers_are_accepted_together() -> None:
    rows = [row(number, (2.0, 0.0), 0) for number in range(400)]
    found = threshold_for_accuracy(run_of(rows), measure="confidence", target=0.95)
    assert found.coverage.value == 1


def test_a_target_out_of_reach_is_refused_with_what_it_would_take() -> None:
    run = run_of(surely_rows(300, seed=1))
    with pytest.raises(ThresholdError) as caught:
        threshold_for_accuracy(run, measure="confidence", target=0.999)
    assert caught.value.code == "no_threshold"
    # log(0.05) / log(0.999) = 2994.2
    assert "at least 2995 that are all right would do" in caught.value.message


def test_too_few_answers_are_refused_with_the_number_that_is_needed() -> None:
    run = run_of(surely_rows(LEAST_EXAMPLES - 1, seed=1))
    with pytest.raises(ThresholdError, match="99 answers in 99 groups; a threshold") as caught:
        threshold_for_accuracy(run, measure="confidence", target=0.6)
    assert caught.value.code == "too_few_examples"


@pytest.mark.parametrize("groups", [1, 19])
def test_too_few_groups_are_refused(groups: int) -> None:
    rows = [
        replace(item, group=f"g{number % groups}")
        for number, item in enumerate(surely_rows(300, seed=1))
    ]
    with pytest.raises(ThresholdError, match=f"300 answers in {groups} groups"):
        threshold_for_costs(run_of(rows), measure="confidence", costs=Costs(0, 1, 2))


def test_a_group_is_in_one_half_alone() -> None:
    """Two answers a group, of which one is right: in every half there are as many of either."""
    rows = [row(number, (2.0, 0.0), number % 2, group=f"g{number // 2}") for number in range(400)]
    found = threshold_for_accuracy(run_of(rows), measure="confidence", target=0.4)
    assert found.accuracy == 0.5


def test_answers_below_the_least_mass_are_never_accepted() -> None:
    rows = [
        *surely_rows(500, seed=1),
        *(replace(item, id=f"x{item.id}") for item in surely_rows(500, seed=2, mass=0.3)),
    ]
    found = threshold_for_accuracy(run_of(rows), measure="confidence", target=0.6, least_mass=0.5)
    assert found.coverage.value == pytest.approx(0.5, abs=0.08)


def test_nothing_with_enough_mass_is_refused() -> None:
    rows = surely_rows(300, seed=1, mass=0.1)
    with pytest.raises(ThresholdError):
        threshold_for_accuracy(run_of(rows), measure="confidence", target=0.6, least_mass=0.5)
    with pytest.raises(ThresholdError):
        threshold_for_costs(
            run_of(rows), measure="confidence", costs=Costs(0, 1, 2), least_mass=0.5
        )


# --- costs


def test_the_least_cost_is_where_a_wrong_answer_costs_as_much_as_falling_back() -> None:
    """A wrong one costs 10, falling back 1: accept from a confidence of 0.9 on.

    That is a fifth of all; each costs 10 * 0.05, which saves 0.5 of 1.
    """
    run = run_of(surely_rows(8000, seed=3))
    found = threshold_for_costs(run, measure="confidence", costs=Costs(0, 10, 1))
    assert found.cost is not None
    assert found.threshold == pytest.approx(0.9, abs=0.04)
    assert found.cost == pytest.approx(1 - 0.2 * 0.5, abs=0.03)
    # Of all, a quarter is wrong.
    assert found.cost_of_accepting_all == pytest.approx(2.5, abs=0.2)
    assert found.saving is not None
    assert found.saving.value == pytest.approx(1 - found.cost)
    assert 0 < found.saving.low < found.saving.value < found.saving.high


def test_mistakes_that_cost_too_much_are_refused() -> None:
    run = run_of(surely_rows(1000, seed=3))
    with pytest.raises(ThresholdError, match="not shown to be cheaper") as caught:
        threshold_for_costs(run, measure="confidence", costs=Costs(0, 10_000, 1))
    assert caught.value.code == "no_threshold"


def guessed_rows(count: int, *, accuracy: float, seed: int) -> list[Row]:
    """Rows that are right in `accuracy`, whatever their confidence is."""
    draw = random.Random(seed)
    return [
        row(number, (draw.uniform(0, 4), 0.0), int(draw.random() > accuracy))
        for number in range(count)
    ]


def claims_to_save(run: Run, costs: Costs) -> bool:
    try:
        threshold_for_costs(run, measure="confidence", costs=costs)
    except ThresholdError:
        return False
    return True


def test_mistakes_that_are_rare_and_dear_are_seldom_overlooked() -> None:
    """Accepting breaks even at 0.99, and 0.98 are right: of 60 claims, 1.5 may be wrong.

    More than 5 would be no chance.
    """
    assert binom.sf(5, 60, FALSE_SAVINGS) < 0.005
    runs = (run_of(guessed_rows(LEAST_EXAMPLES, accuracy=0.98, seed=seed)) for seed in range(60))
    assert sum(claims_to_save(run, Costs(0, 100, 1)) for run in runs) <= 5


@pytest.mark.parametrize(("wrong", "is_claimed"), [(12, True), (16, False)])
def test_how_many_right_answers_show_a_saving(wrong: float, is_claimed: bool) -> None:
    """Half of 100 are all right: that has a chance of 0.025 where 0.929 are."""
    assert binom.sf(49, 50, 1 - 1 / 12) < 0.025 < binom.sf(49, 50, 1 - 1 / 16)
    rows = [row(number, (2.0, 0.0), 0) for number in range(100)]
    assert claims_to_save(run_of(rows), Costs(0, wrong, 1)) is is_claimed


def test_mistakes_that_cost_no_more_than_falling_back_need_no_right_answer() -> None:
    rows = [row(number, (2.0, 0.0), 1) for number in range(200)]
    assert claims_to_save(run_of(rows), Costs(0, 1, 2))
    assert not claims_to_save(run_of(rows), Costs(0, 2, 2))


def test_right_answers_that_cost_as_much_as_falling_back_save_nothing() -> None:
    assert not claims_to_save(run_of(surely_rows(200, seed=1)), Costs(2, 1, 2))


def test_mistakes_that_cost_nothing_accept_everything() -> None:
    found = threshold_for_costs(
        run_of(surely_rows(1000, seed=3)), measure="margin", costs=Costs(0, 0, 1)
    )
    assert found.coverage.value == pytest.approx(1, abs=0.02)


# --- the policy


def test_the_policy_says_what_it_was_measured_on() -> None:
    served = replace(SERVED, orders=2, calibration_sha256="c" * 64)
    run = run_of(surely_rows(2000, seed=5), served=served)
    found = threshold_for_accuracy(run, measure="margin", target=0.9)
    policy = policy_of(run, found, asked={"target_accuracy": 0.9}, least_mass=0.25)
    assert (policy.measure, policy.threshold) == ("margin", found.threshold)
    assert (policy.options, policy.least_mass) == ((2, 2), 0.25)
    assert (policy.bound.model_sha256, policy.bound.orders) == (SERVED.model.sha256, 2)
    assert policy.bound.calibration_sha256 == "c" * 64
    assert policy.measured["held_out_examples"] == 1000
