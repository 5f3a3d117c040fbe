"""`ballot report`: the figures of a run, on the screen, as JSON and as a page."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from ballot.commands.explain import Unusable
from ballot.commands.options import AsJson
from ballot.commands.render_report import summary
from ballot.commands.screen import make_console, printable
from ballot.quality.figures import Report
from ballot.quality.report import HTML_FILE, report_json, write_report
from ballot.quality.runs import load_run

HourlyPrice = Annotated[
    float | None,
    typer.Option(
        "--hourly-price", metavar="PRICE", help="What an hour of the endpoint costs, all of it."
    ),
]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    hourly_price: HourlyPrice = None,
    as_json: AsJson = False,
) -> None:
    """Show what a finished run says, and write its report anew.

    \b
    ballot report runs/support --hourly-price 1.36

    report.html and report.json are written into the run's folder; docs/quality.md
    says what the figures mean.
    """
    check_price(hourly_price)
    found = write_report(load_run(run), hourly_price=hourly_price)
    if as_json:
        print(report_json(found), end="")
        return
    show_report(found, run)


def show_report(report: Report, folder: Path) -> None:
    """Print a report's main figures, and where the page is that has them all."""
    console = make_console(sys.stdout)
    console.print(summary(report))
    console.print()
    console.print(printable(str(folder / HTML_FILE)), soft_wrap=True)


def check_price(price: float | None) -> None:
    """Raise `Unusable` if there is a price and it is none."""
    if price is not None and not (math.isfinite(price) and price > 0):
        raise Unusable(f"--hourly-price {price:g} is no price", advice="give more than 0")
