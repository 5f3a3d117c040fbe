"""Temperatures: against scipy, against known truths over many seeds, and what is refused."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import binom

from adapter.calibration import LEAST_TEMPERATURE as ADAPTER_LEAST
from adapter.calibration import MOST_TEMPERATURE as ADAPTER_MOST
from adapter.calibration import read_calibration
from adapter.decision import Scoring
from adapter.prompt import PROMPT_VERSIONS
from adapter.scorer import Scored
from ballot.quality.calibration import (
    FALSE_CLAIMS,
    FOLDS,
    LEAST_EXAMPLES,
    LEAST_GROUPS,
    LEAST_TEMPERATURE,
    MOST_TEMPERATURE,
    Calibration,
    Case,
    calibrate,
    fit_temperature,
    folds_of,
    temperature_interval,
)
from ballot.quality.resampling import change_of_calibration_error, change_of_means
from ballot.quality.runs import Row
from ballot.quality.statistics import calibration_error, equal_width_bins
from tests.labelled_runs import SERVED, drawn_rows, row, run_of, softmax


def cases_of(rows: Sequence[Row]) -> list[Case]:
    return [Case.of(item, item.option_logits) for item in rows]


def scipy_temperature(rows: Sequence[Row]) -> float:
    """The temperature with the least negative log-likelihood, found by scipy's Brent."""

    def loss(log_inverse: float) -> float:
        inverse = math.exp(log_inverse)
        return -sum(
            float(log_softmax(np.array(item.option_logits) * inverse)[int(item.expected[1:])])
            for item in rows
        )

    bounds = (-math.log(MOST_TEMPERATURE), -math.log(LEAST_TEMPERATURE))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return math.exp(-found.x)


def applied(found: Calibration, kind: str, *, options: int) -> float:
    """The temperature that the adapter would apply to such a decision."""
    scored = Scored(
        option_logits=(0.0,) * options,
        probabilities=(1 / options,) * options,
        allowed_token_mass=1.0,
        answer_token_ids=tuple(range(options)),
        input_tokens=9,
        cached_tokens=0,
        prompt_sha256="1" * 64,
        prompt_version="direct-options-v1",
        forward_seconds=0.1,
    )
    calibrated = read_calibration(found.file_text()).apply(scored, kind=kind, scoring=Scoring())
    assert calibrated.calibration is not None
    return calibrated.calibration.temperature


# --- one temperature


@pytest.mark.parametrize("seed", range(8))
def test_the_temperature_is_scipys(seed: int) -> None:
    truth = random.Random(seed).uniform(0.4, 4)
    rows = drawn_rows(150, temperature=truth, seed=seed, options=(2, 3, 5, 9))
    assert fit_temperature(cases_of(rows)) == pytest.approx(scipy_temperature(rows), rel=1e-4)


def test_a_constant_in_the_logits_changes_nothing() -> None:
    rows = drawn_rows(150, temperature=2, seed=1)
    moved = [
        row(number, [logit + 1000 for logit in item.option_logits], int(item.expected[1:]))
        for number, item in enumerate(rows)
    ]
    assert fit_temperature(cases_of(moved)) == pytest.approx(fit_temperature(cases_of(rows)))


def test_answers_that_are_all_right_have_the_least_temperature() -> None:
    rows = [row(number, (1.0, 0.0), 0) for number in range(50)]
    assert fit_temperature(cases_of(rows)) == LEAST_TEMPERATURE


def test_answers_that_are_all_wrong_have_the_most() -> None:
    rows = [row(number, (1.0, 0.0), 1) for number in range(50)]
    assert fit_temperature(cases_of(rows)) == MOST_TEMPERATURE


def test_logits_that_are_all_equal_say_nothing() -> None:
    rows = [row(number, (1.0, 1.0), number % 2) for number in range(50)]
    temperature = fit_temperature(cases_of(rows))
    assert temperature in (LEAST_TEMPERATURE, MOST_TEMPERATURE)


def test_logits_far_apart_do_not_overflow() -> None:
    rows = [row(number, (5000.0, -5000.0), int(number == 0)) for number in range(50)]
    assert fit_temperature(cases_of(rows)) == MOST_TEMPERATURE


def test_the_interval_has_the_true_temperature_as_often_as_it_says() -> None:
    """Of 300 draws, a 95 % interval misses 15; 30 would be beyond chance (p < 0.001)."""
    seeds = range(300)
    assert binom.sf(29, len(seeds), 0.05) < 0.001
    misses = 0
    for seed in seeds:
        cases = cases_of(drawn_rows(200, temperature=1.7, seed=seed, options=(2, 4)))
        interval = temperature_interval(cases, fit_temperature(cases))
        misses += not interval.low <= 1.7 <= interval.high
    assert misses < 30


def test_the_least_number_of_examples_tells_a_temperature_to_a_factor_of_a_half() -> None:
    widths = []
    for seed in range(40):
        cases = cases_of(drawn_rows(LEAST_EXAMPLES, temperature=1.5, seed=seed))
        interval = temperature_interval(cases, fit_temperature(cases))
        widths.append(math.sqrt(interval.high / interval.low))
    assert 1.2 < sorted(widths)[len(widths) // 2] < 1.6


def test_examples_that_are_there_thrice_do_not_make_it_surer() -> None:
    once = drawn_rows(150, temperature=2, seed=4)
    grouped = [
        row(3 * number + copy, item.option_logits, int(item.expected[1:]), group=f"g{number}")
        for number, item in enumerate(once)
        for copy in range(3)
    ]
    alone = temperature_interval(cases_of(once), 2.0)
    together = temperature_interval(cases_of(grouped), 2.0)
    assert together.high / together.low == pytest.approx(alone.high / alone.low, rel=1e-9)


# --- a calibration


def test_a_known_temperature_is_recovered() -> None:
    found = calibrate(run_of(drawn_rows(600, temperature=2.5, seed=11, options=(2, 3, 4))))
    (kept,) = found.kept
    assert (kept.kind, kept.options) == ("choice", (2, 4))
    assert kept.temperature is not None
    assert kept.temperature.low < 2.5 < kept.temperature.high
    assert found.nll.after < found.nll.before
    assert found.nll.gain.low > 0
    assert found.ece.after < found.ece.before
    assert found.ece.gain.low > 0


def test_no_gain_is_claimed_where_there_is_none() -> None:
    """Of 40 calibrated data sets, at most 1 in 20 may claim a gain: more than 6 is no chance."""
    seeds = range(40)
    assert binom.sf(6, len(seeds), FALSE_CLAIMS) < 0.01
    claims = 0
    for seed in seeds:
        rows = [
            *drawn_rows(110, temperature=1, seed=seed, kind="choice"),
            *drawn_rows(110, temperature=1, seed=1000 + seed, kind="noul", options=(2,), first=110),
        ]
        claims += bool(calibrate(run_of(rows), seed=seed).kept)
    assert claims <= 6


def test_kinds_that_differ_get_temperatures_of_their_own() -> None:
    rows = [
        *drawn_rows(700, temperature=3, seed=1, kind="choice", options=(4,)),
        *drawn_rows(700, temperature=0.7, seed=2, kind="noul", options=(2,), first=700),
    ]
    found = calibrate(run_of(rows))
    assert applied(found, "choice", options=4) == pytest.approx(3, rel=0.25)
    assert applied(found, "noul", options=2) == pytest.approx(0.7, rel=0.25)


def test_kinds_that_are_alike_share_one() -> None:
    rows = [
        *drawn_rows(300, temperature=2, seed=3, kind="choice"),
        *drawn_rows(300, temperature=2, seed=4, kind="score", first=300),
    ]
    found = calibrate(run_of(rows))
    assert [item.kind for item in found.kept] == ["any"]
    assert [item.verdict for item in found.slices] == ["kept", "no_gain", "no_gain"]


def test_bands_of_option_counts_are_told_apart_where_they_differ() -> None:
    rows = [
        *drawn_rows(400, temperature=1, seed=5, options=(2,)),
        *drawn_rows(400, temperature=3, seed=6, options=(8,), first=400),
    ]
    found = calibrate(run_of(rows))
    assert {item.options for item in found.kept} <= {(2, 8), (2, 2), (8, 8)}
    assert applied(found, "choice", options=2) == pytest.approx(1, rel=0.25)
    assert applied(found, "choice", options=8) == pytest.approx(3, rel=0.25)
    # Of other numbers of options, nothing is known.
    assert applied(found, "choice", options=11) == 1


def test_too_few_examples_are_told_with_the_number_that_is_needed() -> None:
    found = calibrate(run_of(drawn_rows(LEAST_EXAMPLES - 1, temperature=3, seed=1)))
    assert found.kept == ()
    assert found.slices[0].verdict == "too_few"
    assert f"99 examples in 99 groups; a temperature needs {LEAST_EXAMPLES}" in (
        found.slices[0].reason
    )


def test_too_few_groups_are_too_few_examples() -> None:
    rows = drawn_rows(300, temperature=3, seed=1)
    grouped = [
        row(number, item.option_logits, int(item.expected[1:]), group=f"g{number % 19}")
        for number, item in enumerate(rows)
    ]
    assert LEAST_GROUPS == 20
    assert [item.verdict for item in calibrate(run_of(grouped)).slices] == ["too_few"]


def test_a_slice_has_folds_of_its_own() -> None:
    """Nine groups of 100 fill nine folds of the run, so that all of the others are in the tenth."""
    grouped = [
        replace(item, group=f"g{number % 9}")
        for number, item in enumerate(drawn_rows(900, temperature=1, seed=11))
    ]
    alone = drawn_rows(100, temperature=2, seed=12, kind="score", first=900)
    found = calibrate(run_of([*grouped, *alone]))
    slices = {item.kind: item for item in found.slices}
    assert slices["choice"].verdict == "too_few"
    # Fitted on nine tenths of them, a temperature is hardly worse than the best that there is.
    best = scipy_temperature(alone)
    losses = [
        -math.log(softmax(item.option_logits, best)[int(item.expected[1:])]) for item in alone
    ]
    assert slices["score"].nll is not None
    assert slices["score"].nll.after == pytest.approx(sum(losses) / len(losses), rel=0.02)


def test_answers_that_are_all_right_need_none() -> None:
    rows = [row(number, (2.0, 0.0), 0) for number in range(200)]
    found = calibrate(run_of(rows))
    assert [item.verdict for item in found.slices] == ["at_bound"]
    assert found.nll.gain.value == 0


def test_the_order_of_the_rows_changes_nothing() -> None:
    rows = drawn_rows(300, temperature=2, seed=9)
    shuffled = random.Random(0).sample(rows, len(rows))
    one, other = (calibrate(run_of(item)).slices[0] for item in (rows, shuffled))
    assert one.temperature is not None
    assert other.temperature is not None
    assert one.temperature.value == other.temperature.value
    assert one.temperature.high == pytest.approx(other.temperature.high, rel=1e-12)
    assert one.nll is not None
    assert other.nll is not None
    assert one.nll.after == pytest.approx(other.nll.after, rel=1e-12)


def test_the_same_run_gives_the_same_file() -> None:
    run = run_of(drawn_rows(300, temperature=2, seed=9))
    assert calibrate(run).file_text() == calibrate(run).file_text()


def test_the_file_is_read_by_the_adapter_and_bound_to_what_answered() -> None:
    found = calibrate(run_of(drawn_rows(300, temperature=2, seed=9, options=(2, 6))))
    text = found.file_text()
    read = read_calibration(text)
    assert len(text) < 1024
    assert (read.model_sha256, read.prompt_version) == (
        SERVED.model.sha256,
        PROMPT_VERSIONS["evidence_first"],
    )
    assert (read.scoring.layout, read.scoring.orders) == ("evidence_first", 1)
    assert found.kept[0].temperature is not None
    assert [item.value for item in read.temperatures] == [found.kept[0].temperature.value]
    assert (LEAST_TEMPERATURE, MOST_TEMPERATURE) == (ADAPTER_LEAST, ADAPTER_MOST)


# --- folds


def test_a_group_is_in_one_fold_and_folds_are_about_equal() -> None:
    draw = random.Random(3)
    groups = [f"g{draw.randrange(40)}" for _ in range(500)]
    folds = folds_of(groups)
    assert all(
        len({fold for fold, name in zip(folds, groups, strict=True) if name == group}) == 1
        for group in set(groups)
    )
    sizes = [folds.count(fold) for fold in range(FOLDS)]
    assert max(sizes) - min(sizes) <= max(groups.count(group) for group in set(groups))


def test_no_fold_is_empty_however_uneven_the_groups_are() -> None:
    groups = [*("huge" for _ in range(1000)), *(f"g{number}" for number in range(1, LEAST_GROUPS))]
    assert set(folds_of(groups)) == set(range(FOLDS))


def test_the_folds_follow_from_the_names_alone() -> None:
    groups = [f"g{number}" for number in range(100)]
    backwards = dict(zip(reversed(groups), folds_of(groups[::-1]), strict=True))
    assert [backwards[group] for group in groups] == folds_of(groups)


# --- intervals


def test_the_calibration_error_that_is_resampled_is_the_statistics() -> None:
    rows = drawn_rows(300, temperature=3, seed=2)
    before = [max(item.probabilities) for item in rows]
    after = [max(softmax(item.option_logits, 3)) for item in rows]
    correct = [
        item.option_logits[int(item.expected[1:])] == max(item.option_logits) for item in rows
    ]
    found = change_of_calibration_error(
        list(zip(before, correct, strict=True)),
        list(zip(after, correct, strict=True)),
        [item.id for item in rows],
        seed=0,
    )
    assert found.before == pytest.approx(calibration_error(equal_width_bins(before, correct)))
    assert found.after == pytest.approx(calibration_error(equal_width_bins(after, correct)))
    assert found.gain.value == pytest.approx(found.before - found.after)
    assert found.gain.low < found.gain.value < found.gain.high


def test_an_interval_is_about_that_of_the_normal_distribution() -> None:
    draw = np.random.default_rng(0)
    before, after = draw.normal(1, 1, 500), draw.normal(0.5, 1, 500)
    groups = [str(number) for number in range(500)]
    gain = change_of_means(list(before), list(after), groups, seed=1).gain
    error = float(np.std(before - after, ddof=1)) / math.sqrt(500)
    assert gain.value == pytest.approx(float(np.mean(before - after)))
    assert (gain.high - gain.low) / 2 == pytest.approx(1.96 * error, rel=0.1)


def test_groups_widen_an_interval() -> None:
    draw = random.Random(2)
    values = [value for value in (draw.gauss(0, 1) for _ in range(60)) for _ in range(5)]
    zero = [0.0] * len(values)
    alone = change_of_means(values, zero, [str(n) for n in range(300)], seed=0).gain
    grouped = change_of_means(values, zero, [str(n // 5) for n in range(300)], seed=0).gain
    assert (grouped.high - grouped.low) / (alone.high - alone.low) == pytest.approx(
        math.sqrt(5), rel=0.15
    )
