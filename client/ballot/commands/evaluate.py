"""`ballot evaluate`: asks labelled examples, and says how good the answers are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ballot.commands.decide import scoring_of
from ballot.commands.explain import Unusable
from ballot.commands.options import DEFAULT_TIMEOUT, EndpointName, Key, Region, Timeout, Url
from ballot.commands.plan import (
    Concurrency,
    FailUnder,
    Layout,
    Model,
    Most,
    Orders,
    Out,
    Plan,
    Respondent,
    conclude,
)
from ballot.commands.report import HourlyPrice, check_price
from ballot.commands.screen import printable
from ballot.commands.status import Status
from ballot.quality.examples import Data, DataError, read_data
from ballot.quality.gate import parse_limits

_MOST_BAD_LINES = 20


def evaluate(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Labelled examples: JSON lines, or CSV.")
    ],
    endpoint: EndpointName = None,
    url: Url = None,
    model: Model = None,
    mapping: Annotated[
        Path | None,
        typer.Option("--map", metavar="FILE", help="What the columns of a CSV file mean."),
    ] = None,
    out: Out = None,
    limit: Most = None,
    orders: Orders = None,
    layout: Layout = None,
    concurrency: Concurrency = 1,
    fail_under: FailUnder = None,
    hourly_price: HourlyPrice = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    region: Region = None,
    key: Key = None,
) -> Status:
    """Ask labelled examples, and say how good the answers are.

    \b
    ballot evaluate decisions.jsonl --endpoint ballot-dev-decision
    ballot evaluate tickets.csv --map tickets.json --url http://127.0.0.1:8080
    ballot evaluate decisions.jsonl --model model.gguf --fail-under accuracy=0.9

    Every answer is kept as it comes: after an interruption, the same command asks
    what is left. The report lies beside the answers, in the run's folder.
    """
    respondent = Respondent(endpoint_name=endpoint, url=url, model=model, region=region, key=key)
    limits = parse_limits(fail_under) if fail_under else ()
    check_price(hourly_price)
    scoring = scoring_of(orders, layout)
    plan = Plan(
        data=_read(data, mapping),
        respondent=respondent,
        scoring=scoring,
        concurrency=concurrency,
        timeout_seconds=timeout,
        folder=out,
        limit=limit,
    )
    return conclude(plan.run(), limits, hourly_price=hourly_price)


def _read(data: Path, mapping: Path | None) -> Data:
    """Read the examples; say on a line each what is wrong with the data."""
    try:
        return read_data(data, mapping)
    except DataError as error:
        for bad in error.bad_lines[:_MOST_BAD_LINES]:
            print(f"{printable(data.name)}:{bad.line}: {printable(bad.message)}", file=sys.stderr)
        left = len(error.bad_lines) - _MOST_BAD_LINES
        if left > 0:
            print(f"{printable(data.name)}: and {left} more", file=sys.stderr)
        lines = "1 line" if len(error.bad_lines) == 1 else f"{len(error.bad_lines)} lines"
        raise Unusable(
            f"{data.name}: {lines} cannot be used",
            advice="mend the data; docs/evaluate.md describes it",
        ) from error
