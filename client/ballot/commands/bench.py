"""`ballot bench`: asks the tasks of a public benchmark, and prints its row."""

from __future__ import annotations

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
from ballot.commands.status import Status
from ballot.quality import jevbench
from ballot.quality.figures import report_of
from ballot.quality.gate import parse_limits


def bench(
    benchmark: Annotated[str, typer.Argument(metavar="BENCHMARK", help="Its name: jevbench.")],
    endpoint: EndpointName = None,
    url: Url = None,
    model: Model = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Where its files are, instead of the web."),
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
    """Ask a public benchmark, and print its row.

    \b
    ballot bench jevbench --endpoint ballot-dev-decision
    ballot bench jevbench --data datasets/public --url http://127.0.0.1:8080

    jevbench has 231 tasks, fetched at a pinned commit and checked by their SHA-256.
    Otherwise it is ballot evaluate.
    """
    if benchmark != jevbench.NAME:
        raise Unusable(f"there is no benchmark {benchmark!r} here", advice=f"give {jevbench.NAME}")
    respondent = Respondent(endpoint_name=endpoint, url=url, model=model, region=region, key=key)
    limits = parse_limits(fail_under) if fail_under else ()
    check_price(hourly_price)
    scoring = scoring_of(orders, layout)
    plan = Plan(
        data=jevbench.read_tasks(data) if data else jevbench.fetch_tasks(),
        respondent=respondent,
        scoring=scoring,
        concurrency=concurrency,
        timeout_seconds=timeout,
        folder=out,
        limit=limit,
    )
    run = plan.run()
    status = conclude(run, limits, hourly_price=hourly_price)
    typer.echo(f"{plan.respondent.name}: {jevbench.article_row(report_of(run))}")
    return status
