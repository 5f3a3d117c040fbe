"""A decision as the adapter understands it, whatever wire format it came in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

LAYOUTS = ("evidence_first", "criterion_first")
ORDERS = (1, 2)


@dataclass(frozen=True)
class Scoring:
    """How decisions are to be scored: where the state stands, and in how many option orders."""

    layout: str = LAYOUTS[0]
    orders: int = ORDERS[0]


@dataclass(frozen=True)
class Option:
    """One declared answer. `description` is what the model reads; `id` is only for the caller."""

    id: str
    description: str


@dataclass(frozen=True)
class Decision:
    """A state, a question about it, and the two or more options it is to be decided between."""

    id: str
    state: Json
    question: str
    options: tuple[Option, ...]

    def reversed(self) -> Decision:
        """Return the same decision with its options in the other order."""
        return replace(self, options=self.options[::-1])
