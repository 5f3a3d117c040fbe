"""A decision as the adapter understands it, whatever wire format it came in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

LAYOUTS = ("evidence_first", "criterion_first")
ORDERS = (1, 2)
# What a decision asks: System One's types of questions, or whatever a native request does.
KINDS = ("native", "choice", "noul", "score")


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
    """A state, a question about it, and the two or more options it is to be decided between.

    The model never learns its `kind`, one of `KINDS`: a calibration may tell them apart.
    """

    id: str
    state: Json
    question: str
    options: tuple[Option, ...]
    kind: str = KINDS[0]

    def reversed(self) -> Decision:
        """Return the same decision with its options in the other order."""
        return replace(self, options=self.options[::-1])


def kind_of(value: Json) -> str:
    """Return what `value` is in JSON's words, with its article, for messages about it."""
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "an array"}
    return names.get(type(value), "an object" if isinstance(value, dict) else "a number")
