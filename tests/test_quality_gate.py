"""Limits: what can be limited, what is no limit, and on which side of it is good."""

from __future__ import annotations

import pytest

from ballot.quality.figures import report_of
from ballot.quality.gate import GAUGES, GateError, Limit, judge, parse_limits
from tests.made_runs import drawn_rows, failure, order, row, run

# 7 of 10 are right, each at 0.9.
TEN = run(
    [row(f"e{index}", "no yes", "no" if index < 7 else "yes", (0.9, 0.1)) for index in range(10)]
)


def is_kept(text: str) -> bool:
    (verdict,) = judge(report_of(TEN), parse_limits(text))
    return verdict.is_kept


def test_limits_are_read_in_their_order() -> None:
    assert parse_limits("accuracy=0.9,ece=0.05") == (Limit("accuracy", 0.9), Limit("ece", 0.05))
    assert parse_limits(" p95 = 2.5 ") == (Limit("p95", 2.5),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no limit"),
        ("accuracy", "is no limit"),
        ("accuracy=0.9,", "is no limit"),
        ("acuracy=0.9", "'acuracy' is no figure to limit; there are accuracy, "),
        ("=0.9", "'' is no figure"),
        ("accuracy=high", "the limit of accuracy is not a number: 'high'"),
        ("accuracy=", "not a number"),
        ("ece=nan", "not a number"),
        ("p95=inf", "not a number"),
        ("accuracy=0.9,accuracy=0.8", "accuracy has two limits"),
        ("accuracy=90", "accuracy is never 90: it is between 0 and 1"),
        ("brier=2.5", "between 0 and 2"),
        ("p95=-1", "p95 is never -1: it is not negative"),
    ],
)
def test_what_is_no_limit_is_refused(text: str, says: str) -> None:
    with pytest.raises(GateError, match=says) as caught:
        parse_limits(text)

    assert caught.value.code == "invalid_limit"


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        ("accuracy=0.7", True),
        ("accuracy=0.71", False),
        # The Wilson interval of 7 of 10 begins at 0.3968 (scipy: binomtest(7, 10)).
        ("accuracy_low=0.396", True),
        ("accuracy_low=0.397", False),
        ("macro_kind=0.7", True),
        ("macro_family=0.1", False),
        ("answered=1", True),
        ("mass=0.98", True),
        ("mass=0.99", False),
        # 0.7 ln(1/0.9) + 0.3 ln(1/0.1) = 0.76453
        ("nll=0.765", True),
        ("nll=0.764", False),
        # 0.7 * 2 * 0.01 + 0.3 * 2 * 0.81 = 0.5
        ("brier=0.501", True),
        ("brier=0.499", False),
        ("ece=0.201", True),
        ("ece=0.199", False),
        ("flips=1", False),
        ("p50=0.5", True),
        ("p95=0.49", False),
        ("p99=0.5", True),
    ],
)
def test_each_figure_is_good_on_its_side_of_the_limit(limit: str, kept: bool) -> None:
    assert is_kept(limit) is kept


def test_a_verdict_says_what_was_wanted_and_what_is() -> None:
    verdicts = judge(report_of(TEN), parse_limits("accuracy=0.9,ece=0.1,flips=0.05"))

    assert [verdict.line for verdict in verdicts] == [
        "accuracy is 0.7, wanted at least 0.9",
        "ece is 0.2, wanted at most 0.1",
        "flips is not measured, wanted at most 0.05",
    ]


def test_what_was_not_measured_keeps_no_limit() -> None:
    nothing = run([], [failure("e0", "yes")])
    limits = [Limit(name, gauge.highest) for name, gauge in GAUGES.items()]

    kept = {
        verdict.limit.figure for verdict in judge(report_of(nothing), limits) if verdict.is_kept
    }

    assert kept == set()


def test_flips_can_be_limited_where_both_orders_were_scored() -> None:
    orders = (order((0.6, 0.4)), order((0.3, 0.7)))
    flipped = report_of(run([row("e", "no yes", "no", (0.45, 0.55), orders=orders)], orders=2))
    rest = report_of(run(drawn_rows(50, seed=1, orders=2), orders=2))

    assert not judge(flipped, parse_limits("flips=0.99"))[0].is_kept
    assert judge(rest, parse_limits("flips=0.99"))[0].is_kept
