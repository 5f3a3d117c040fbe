"""A decision as the adapter understands it, whatever wire format it came in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


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
