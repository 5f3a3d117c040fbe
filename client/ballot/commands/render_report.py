"""Draws a run's report: its main figures, and what they say."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ballot.commands.render import DIM
from ballot.commands.screen import printable
from ballot.quality.figures import Group, Report
from ballot.quality.statistics import Percentiles
from ballot.quality.wording import (
    count_of,
    findings,
    interval,
    mean_interval,
    number,
    percent,
    seconds,
    served_line,
)


def summary(report: Report) -> RenderableType:
    """Return a report's main figures, for a console."""
    settings = report.manifest.settings
    parts: list[RenderableType] = [
        Text(printable(settings.data_name), style="bold"),
        Text(printable(served_line(report.manifest.served)), style=DIM),
        Text(),
        _figures(report),
    ]
    for name, groups in (("type", report.by_kind), ("family", report.by_family)):
        if groups:
            parts += [Text(), _groups(name, groups)]
    parts.append(Text())
    for sentence in findings(report):
        line = Table.grid(padding=(0, 1))
        line.add_row("-", Text(printable(sentence)))
        parts.append(line)
    return Stack(*parts)


def _figures(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    rows = [
        (
            "accuracy",
            percent(report.accuracy.value),
            f"{count_of(report.accuracy)}, {interval(report.accuracy)}",
        ),
        ("  by type, alike", percent(report.macro_by_kind), ""),
        ("  by family, alike", percent(report.macro_by_family), ""),
        ("log loss (NLL)", number(report.log_loss.value), mean_interval(report.log_loss)),
        ("Brier score", number(report.brier.value), mean_interval(report.brier)),
        (
            "ECE, 10 equal bins",
            number(report.calibration.error),
            f"by chance up to {number(report.calibration.error_by_chance)}",
        ),
        *_latency("client p50", report.latency.client),
        *_latency("container p50", report.latency.container),
        ("input tokens", f"{report.tokens.input:,}", f"{report.tokens.cached:,} cached"),
        ("no valid answer", f"{report.answered.total - report.answered.count:,}", ""),
    ]
    if report.mass:
        told = f"median; least {number(report.mass.least)}"
        rows.append(("token mass", number(report.mass.p50), told))
    if report.orders:
        rows.append(
            ("flips, reversed", percent(report.orders.flips.value), count_of(report.orders.flips))
        )
    if report.cost:
        told = f"at {report.cost.hourly_price:g} an hour"
        rows.append(("1,000 decisions cost", f"{report.cost.per_thousand:.3g}", told))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style=DIM)
    for row in rows:
        table.add_row(*row)
    return table


def _latency(name: str, of: Percentiles | None) -> list[tuple[str, str, str]]:
    if of is None:
        return []
    return [(name, seconds(of.p50), f"p95 {seconds(of.p95)}, p99 {seconds(of.p99)}")]


def _groups(name: str, groups: Iterable[Group]) -> Table:
    table = Table(box=None, pad_edge=False, header_style=DIM)
    table.add_column(name)
    for column in ("accuracy", "right", "interval", "confidence"):
        table.add_column(column, justify="right")
    for group in groups:
        table.add_row(
            Text(printable(group.name)),
            percent(group.correct.value),
            count_of(group.correct),
            interval(group.correct),
            percent(group.mean_confidence),
        )
    return table
