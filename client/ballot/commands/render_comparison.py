"""Draws runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ballot.commands.render import DIM
from ballot.commands.screen import print_hanging, printable
from ballot.quality.compare import Against, Answer, Comparison, Difference
from ballot.quality.figures import Report
from ballot.quality.wording import NOTHING, number, percent, seconds, served_line

_SIGNIFICANT = 0.05
_RIGHT = "green"


def show_comparison(
    console: Console, comparison: Comparison, *, most_differences: int | None
) -> None:
    """Print runs side by side, and so many of the differing decisions; None: all of them."""
    for name, report in zip(comparison.names, comparison.reports, strict=True):
        line = f"{printable(name)}: {printable(served_line(report.manifest.served))}"
        console.print(Text(line, style=DIM))
    console.print()
    console.print(_table(comparison))
    console.print()
    for against in comparison.against_first:
        told = " ".join(_sentences(comparison, against))
        print_hanging(console, Text("- "), Text(printable(told)))
    console.print()
    _show_differences(console, comparison, most_differences)


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style=DIM)
    table.add_column("run", overflow="fold")
    for column in ("right", "accuracy", "95 %", "p50", "p95", "NLL", "ECE", "tokens"):
        table.add_column(column, justify="right")
    for name, report in zip(comparison.names, comparison.reports, strict=True):
        table.add_row(Text(printable(name)), *_cells(report))
    return table


def _cells(report: Report) -> Iterator[str]:
    accuracy, client = report.accuracy, report.latency.client
    yield f"{accuracy.count}/{accuracy.total}"
    yield percent(accuracy.value)
    yield f"{accuracy.low * 100:.1f} to {accuracy.high * 100:.1f}"
    yield seconds(client.p50 if client else None)
    yield seconds(client.p95 if client else None)
    yield number(report.log_loss.value)
    yield number(report.calibration.error)
    yield f"{report.tokens.input:,}"


def _sentences(comparison: Comparison, against: Against) -> Iterator[str]:
    first, this = comparison.names[0], against.name
    yield (
        f"{this} against {first}: {against.common:,} examples in common. {this} alone is right on "
        f"{against.only_this_right:,}, {first} alone on {against.only_first_right:,}, both on "
        f"{against.both_right:,}, neither on {against.both_wrong:,}."
    )
    yield _verdict(comparison, against)
    if against.other_examples:
        yield (
            f"{against.other_examples:,} examples have the same id in {this} and {first} but other "
            "options, or another right one; they are left out."
        )
    if not against.same_data:
        yield f"{this} and {first} are of different data files; compare only what is in common."


def _verdict(comparison: Comparison, against: Against) -> str:
    test = f"p = {_p_value(against.p_value)} (McNemar, exact"
    pairs = len(comparison.against_first)
    test += f"; one of {pairs} comparisons)" if pairs > 1 else ")"
    if against.p_value < _SIGNIFICANT:
        return f"{test}: chance hardly explains the difference."
    return f"{test}: no difference that the data could tell from chance."


def _p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"


def _show_differences(console: Console, comparison: Comparison, most: int | None) -> None:
    found = comparison.differences
    if not found:
        console.print(Text("Every decision that all runs have is answered alike."))
        return
    shown = found[:most]
    console.print(Text(f"{len(found):,} decisions are answered differently", style="bold"))
    if shown:
        console.print(_difference_table(comparison.names, shown))
    if left := len(found) - len(shown):
        console.print(Text(f"and {left:,} more: --all shows them", style=DIM))


def _difference_table(names: Sequence[str], differences: Sequence[Difference]) -> Table:
    table = Table(box=None, pad_edge=False, header_style=DIM)
    for column in ("decision", "expected", *map(printable, names)):
        table.add_column(Text(column), overflow="fold")
    for difference in differences:
        given = (_given(answer) for answer in difference.answers)
        table.add_row(Text(printable(difference.id)), Text(printable(difference.expected)), *given)
    return table


def _given(answer: Answer | None) -> Text:
    if answer is None:
        return Text(NOTHING, style=DIM)
    told = f"{printable(answer.option)} {answer.probability:.3f}"
    return Text(told, style=_RIGHT if answer.is_correct else "")
