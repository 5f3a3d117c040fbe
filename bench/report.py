"""What a run is as a whole, the table that it prints, and the JSON that it writes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from bench.rows import Outcome, Row
from bench.stats import Spread

COLUMNS = ("row", "against", "ours", "theirs", "value", "quartiles", "target", "")
IN_TURNS = (
    "Each value compares two sides that took turns on this machine: the median over pairs, between "
    "its quartiles. A ratio below 1 means that the adapter took less. In the plots a dot is the "
    "median, a bar the quartiles, an upright line the target."
)
_STYLES = {"pass": "green", "miss": "bold red", "": ""}


@dataclass
class ModelRun:
    """The rows of one model; `identity` is what the adapter says of itself.

    `failures` are the rows that could not be measured, each with the reason.
    """

    file: str
    identity: dict[str, Any]
    outcome: Outcome = field(default_factory=Outcome)
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add what one scenario found."""
        self.outcome.rows.extend(outcome.rows)
        self.outcome.curves.extend(outcome.curves)


@dataclass
class Run:
    """A whole run: where and when, and what each model's rows say; `about` is how to read them."""

    started: str
    machine: dict[str, Any]
    peer: str | None
    load_before: list[float]
    load_after: list[float] = field(default_factory=list)
    seconds: float = 0.0
    about: str = IN_TURNS
    models: list[ModelRun] = field(default_factory=list)

    @property
    def failures(self) -> int:
        """How many rows could not be measured."""
        return sum(len(model.failures) for model in self.models)

    @property
    def misses(self) -> int:
        """How many rows are not as they have to be."""
        return sum(row.verdict == "miss" for model in self.models for row in model.outcome.rows)

    def as_json(self) -> dict[str, Any]:
        """Return everything, as the JSON file has it."""
        whole = dataclasses.asdict(self)
        for model, written in zip(self.models, whole["models"], strict=True):
            written["outcome"]["rows"] = [row.as_json() for row in model.outcome.rows]
        return whole


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text, a cell for each of `COLUMNS`."""
    return (
        row.what,
        row.against,
        _seconds(row.ours),
        _seconds(row.theirs),
        figure(row.value.median, row.unit),
        _quartiles(row),
        "" if row.target is None else str(row.target),
        row.verdict,
    )


def table(model: ModelRun) -> Table:
    """Return a model's rows as a table for the terminal."""
    result = Table(title=f"{model.file} ({model.identity['quantization']})", title_justify="left")
    for name in COLUMNS:
        result.add_column(name, justify="left" if name in ("row", "against") else "right")
    for row in model.outcome.rows:
        result.add_row(*cells(row), style=_STYLES[row.verdict])
    return result


def figure(value: float, unit: str) -> str:
    """Return a value with its unit; a ratio has none."""
    if unit == "ratio":
        return f"{value:.3f}"
    return f"{value:.4g} {unit}"


def _seconds(value: Spread | None) -> str:
    if value is None:
        return ""
    milliseconds = value.median * 1000
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def _quartiles(row: Row) -> str:
    value = row.value
    if value.low == value.high:
        return f"(n={value.count})"
    return f"{value.low:.3g} to {value.high:.3g} (n={value.count})"
