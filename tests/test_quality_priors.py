"""Priors of places: recovered where there are some, and not claimed where there are none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from adapter.calibration import read_calibration
from ballot.quality.calibration import (
    FALSE_CLAIMS,
    LEAST_EXAMPLES,
    calibrate,
    calibrate_one_order,
    folds_of,
)
from ballot.quality.priors import Pair, fit_prior, judge_prior
from ballot.quality.runs import Row
from ballot.results import OrderScores
from tests.labelled_runs import SERVED, drawn_rows, run_of, softmax

BIAS = (1.2, 0.3, -0.3, -1.2)


def scores(logits: Sequence[float]) -> OrderScores:
    return OrderScores(
        probabilities=softmax(logits),
        option_logits=tuple(logits),
        answer_token_ids=tuple(range(len(logits))),
        input_tokens=9,
        cached_tokens=3,
        allowed_token_mass=1.0,
        prompt_sha256="1" * 64,
    )


def two_orders(
    count: int, *, bias: Sequence[float], seed: int, temperature: float = 1.0
) -> list[Row]:
    """Rows of a model that favours each place by `bias`; each order has noise of its own."""
    draw = random.Random(seed)
    rows = []
    for item in drawn_rows(count, temperature=temperature, seed=seed, options=(len(bias),)):
        declared, turned = (
            tuple(
                logit + draw.gauss(0, 0.2) + place
                for logit, place in zip(item.option_logits, places, strict=True)
            )
            for places in (tuple(bias), tuple(bias)[::-1])
        )
        mean = tuple((one + other) / 2 for one, other in zip(declared, turned, strict=True))
        rows.append(
            replace(
                item,
                option_logits=mean,
                probabilities=softmax(mean),
                orders=(scores(declared), scores(turned)),
                orders_agree=False,
            )
        )
    return rows


def pairs_of(rows: Sequence[Row]) -> list[Pair]:
    return [
        Pair(
            item.kind,
            item.id,
            item.orders[0].option_logits,
            item.orders[1].option_logits,
            int(item.expected[1:]),
        )
        for item in rows
    ]


def test_a_known_prior_is_recovered() -> None:
    prior = fit_prior(pairs_of(two_orders(2000, bias=BIAS, seed=1)))
    assert prior == pytest.approx(BIAS, abs=0.02)


def test_a_prior_is_what_least_squares_say() -> None:
    """Of two options: the difference of the two logits is that of the options, plus the places'.

    In the turned order the places' has the other sign; least squares tell the two apart.
    """
    pairs = pairs_of(two_orders(300, bias=(0.7, -0.7), seed=2))
    design = np.zeros((2 * len(pairs), len(pairs) + 1))
    differences = np.zeros(2 * len(pairs))
    for index, pair in enumerate(pairs):
        for row, (logits, sign) in enumerate(((pair.declared, 1), (pair.turned, -1))):
            design[2 * index + row, index] = 1
            design[2 * index + row, -1] = sign
            differences[2 * index + row] = logits[0] - logits[1]
    fitted = np.linalg.lstsq(design, differences, rcond=None)[0][-1]
    assert fit_prior(pairs) == pytest.approx((fitted / 2, -fitted / 2), rel=1e-9)


def test_what_is_right_where_does_not_matter() -> None:
    """The first option is always right: that is the options', and no prior of its place."""
    rows = two_orders(400, bias=(0.0, 0.0, 0.0), seed=3)
    moved = [
        replace(
            pair,
            declared=(pair.declared[0] + 5, *pair.declared[1:]),
            turned=(pair.turned[0] + 5, *pair.turned[1:]),
        )
        for pair in pairs_of(rows)
    ]
    assert fit_prior(moved) == pytest.approx((0, 0, 0), abs=0.03)


def test_what_flips_flips_less() -> None:
    pairs = pairs_of(two_orders(600, bias=BIAS, seed=4))
    fit, held_out = judge_prior(pairs, folds_of([pair.group for pair in pairs]), seed=0, level=0.95)
    assert fit.verdict == "kept"
    assert fit.sensitivity is not None
    assert fit.sensitivity.before == sum(pair.flips for pair in pairs) / 600
    assert fit.sensitivity.after == sum(pair.flips for pair in held_out) / 600
    assert fit.sensitivity.after < fit.sensitivity.before / 2
    assert fit.accuracy is not None
    assert fit.accuracy[1] > fit.accuracy[0]


def test_no_prior_is_claimed_where_there_is_none() -> None:
    """Of 100 models without one, at most 1 in 20 may get one: more than 10 is no chance."""
    assert binom.sf(10, 100, FALSE_CLAIMS) < 0.02
    claims = 0
    for seed in range(100):
        pairs = pairs_of(two_orders(150, bias=(0.0, 0.0, 0.0), seed=seed))
        folds = folds_of([pair.group for pair in pairs])
        claims += judge_prior(pairs, folds, seed=seed, level=0.95)[0].verdict == "kept"
    assert claims <= 10


def test_one_order_gets_priors_and_temperatures() -> None:
    rows = two_orders(600, bias=BIAS, seed=5, temperature=2)
    found = calibrate_one_order(run_of(rows, served=replace(SERVED, orders=2)))
    (prior,) = found.kept_priors
    assert prior.options == 4
    assert found.kept[0].temperature is not None
    assert found.kept[0].temperature.value == pytest.approx(2, rel=0.25)
    assert found.nll.gain.low > 0
    read = read_calibration(found.file_text())
    assert read.scoring.orders == 1
    assert read.priors[0].places == pytest.approx(BIAS, abs=0.1)
    assert read.priors[0].kinds == ("choice",)
    assert read.temperatures[0].value == found.kept[0].temperature.value


def test_two_orders_need_no_prior() -> None:
    run = run_of(
        two_orders(600, bias=BIAS, seed=5, temperature=2), served=replace(SERVED, orders=2)
    )
    found = calibrate(run)
    assert (found.priors, found.orders) == ((), 2)
    assert read_calibration(found.file_text()).scoring.orders == 2


def test_too_few_of_a_number_of_options_are_told() -> None:
    rows = [
        *two_orders(200, bias=BIAS, seed=6),
        *(
            replace(item, id=f"x{item.id}")
            for item in two_orders(LEAST_EXAMPLES - 1, bias=(3.0, -3.0), seed=7)
        ),
    ]
    found = calibrate_one_order(run_of(rows, served=replace(SERVED, orders=2)))
    assert [(item.options, item.verdict) for item in found.priors] == [(2, "too_few"), (4, "kept")]


def test_a_number_of_options_has_folds_of_its_own() -> None:
    """Nine groups of 100 fill nine folds of the run, so that all of the others are in the tenth."""
    rows = [
        *(
            replace(item, group=f"g{number % 9}")
            for number, item in enumerate(two_orders(900, bias=BIAS, seed=8))
        ),
        *(
            replace(item, id=f"x{item.id}", kind="score")
            for item in two_orders(100, bias=(2.0, -2.0), seed=9)
        ),
    ]
    found = calibrate_one_order(run_of(rows, served=replace(SERVED, orders=2)))
    assert [(item.options, item.verdict) for item in found.priors] == [(2, "kept"), (4, "too_few")]
    assert found.priors[0].log_prior == pytest.approx((2, -2), abs=0.1)
