"""What `make bench` finds: rows with a value, its spread and its target, and curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.stats import Spread, paired_ratio, spread

ADAPTER = "adapter"
REFERENCE = "reference path"
LIMIT = "limit"
PEER = "llama-server"

_SIGNS = {"at most": "≤", "at least": "≥", "exactly": "="}


class BenchError(Exception):
    """The bench cannot go on; the message says why."""


@dataclass(frozen=True)
class Target:
    """What a row's value has to be; `plus_seconds` is an allowance before the ratio is taken."""

    sense: Literal["at most", "at least", "exactly"]
    value: float
    plus_seconds: float = 0.0

    def is_met(self, value: float) -> bool:
        """Tell whether `value` is as it has to be."""
        if self.sense == "at most":
            return value <= self.value
        return value >= self.value if self.sense == "at least" else value == self.value

    def __str__(self) -> str:
        plus = f" + {self.plus_seconds * 1000:g} ms" if self.plus_seconds else ""
        return f"{_SIGNS[self.sense]} {self.value:g}{plus}"


def at_most(value: float, *, plus_seconds: float = 0.0) -> Target:
    """Return the target of a value that must not be larger."""
    return Target("at most", value, plus_seconds)


@dataclass(frozen=True)
class Row:
    """One line of the table. `ours` and `theirs` are what the value was made from, in seconds."""

    name: str
    what: str
    against: str
    value: Spread
    target: Target | None = None
    unit: str = "ratio"
    ours: Spread | None = None
    theirs: Spread | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """`pass`, `miss`, or nothing where there is no target."""
        if self.target is None:
            return ""
        return "pass" if self.target.is_met(self.value.median) else "miss"

    def as_json(self) -> dict[str, Any]:
        """Return the row with its verdict."""
        target = None if self.target is None else str(self.target)
        return {**dataclasses.asdict(self), "target": target, "verdict": self.verdict}


@dataclass(frozen=True)
class Curve:
    """Lines over a common axis: each series is a list of (x, y)."""

    title: str
    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Outcome:
    """What one scenario found."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)


def compare(
    name: str,
    what: str,
    samples: Mapping[str, Sequence[float]],
    targets: Mapping[str, Target],
    *,
    note: str = "",
) -> list[Row]:
    """Return a row for each other side that the adapter took turns with."""
    ours = samples[ADAPTER]
    rows = []
    for against, theirs in samples.items():
        if against == ADAPTER:
            continue
        target = targets.get(against)
        less = target.plus_seconds if target else 0.0
        rows.append(
            Row(
                name=name,
                what=what,
                against=against,
                value=paired_ratio(ours, theirs, less=less),
                target=target,
                ours=spread(ours),
                theirs=spread(theirs),
                note=note,
            )
        )
    return rows
