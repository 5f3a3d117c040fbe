"""What is asked: a state, a question about it, and the options it is to be decided between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ballot.errors import InvalidRequest
from ballot.wire import Json

_KINDS = {str: "a string", int: "a whole number", list: "an array"}


@dataclass(frozen=True)
class Option:
    """One declared answer. `description` is what the model reads; `id` is only for the caller."""

    id: str
    description: str

    @classmethod
    def from_json(cls, value: object, path: str = "option") -> Option:
        """Read an option as the wire has it.

        Raises:
            InvalidRequest: naming the first wrong field by its path.
        """
        fields = _fields(value, path, ("id", "description"))
        return cls(
            id=_required(fields, "id", str, path),
            description=_required(fields, "description", str, path),
        )

    def as_json(self) -> dict[str, Json]:
        """Return the option as the wire has it."""
        return {"id": self.id, "description": self.description}


@dataclass(frozen=True)
class Decision:
    """A state (any JSON value), a question about it, and two or more options with unique ids."""

    id: str
    state: Json
    question: str
    options: Sequence[Option]

    @classmethod
    def from_json(cls, value: object, path: str = "decision") -> Decision:
        """Read a decision as the wire has it.

        Raises:
            InvalidRequest: naming the first wrong field by its path.
        """
        fields = _fields(value, path, ("id", "state", "question", "options"))
        return cls(
            id=_required(fields, "id", str, path),
            state=_required(fields, "state", object, path),
            question=_required(fields, "question", str, path),
            options=tuple(
                Option.from_json(item, f"{path}.options[{index}]")
                for index, item in enumerate(_required(fields, "options", list, path))
            ),
        )

    def as_json(self) -> dict[str, Json]:
        """Return the decision as the wire has it.

        The state comes first: SageMaker's prefix-aware routing sends requests that begin alike to
        one instance, which then holds their common state already.
        """
        return {
            "state": self.state,
            "id": self.id,
            "question": self.question,
            "options": [option.as_json() for option in self.options],
        }


@dataclass(frozen=True)
class Scoring:
    """How to score: in 1 or 2 option orders, in which prompt layout; None: as the endpoint is set.

    The layouts are `evidence_first` and `criterion_first`.
    """

    orders: int | None = None
    layout: str | None = None

    @classmethod
    def from_json(cls, value: object, path: str = "scoring") -> Scoring:
        """Read a scoring as the wire has it.

        Raises:
            InvalidRequest: naming the first wrong field by its path.
        """
        fields = _fields(value, path, ("orders", "layout"))
        return cls(
            orders=_required(fields, "orders", int, path) if "orders" in fields else None,
            layout=_required(fields, "layout", str, path) if "layout" in fields else None,
        )

    def as_json(self) -> dict[str, Json]:
        """Return the scoring as the wire has it."""
        fields: dict[str, Json] = {"orders": self.orders, "layout": self.layout}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Request:
    """A whole native request: its decisions, how to score them, and which of its forms it has."""

    decisions: tuple[Decision, ...]
    scoring: Scoring | None = None
    single: bool = False

    @classmethod
    def from_json(cls, value: object) -> Request:
        """Read a request as the wire has it: `decision` or `decisions`, and maybe `scoring`.

        Raises:
            InvalidRequest: naming the first wrong field by its path.
        """
        fields = _fields(value, "", ("decision", "decisions", "scoring"))
        if "decision" in fields and "decisions" in fields:
            raise InvalidRequest("give decision or decisions, not both", code="ambiguous_request")
        scoring = Scoring.from_json(fields["scoring"]) if "scoring" in fields else None
        if "decision" in fields:
            decision = Decision.from_json(fields["decision"])
            return cls((decision,), scoring, single=True)
        items = _required(fields, "decisions", list, "")
        decisions = tuple(
            Decision.from_json(item, f"decisions[{index}]") for index, item in enumerate(items)
        )
        return cls(decisions, scoring)

    def as_json(self) -> dict[str, Json]:
        """Return the request as the wire has it; the first thing in it is a state."""
        body: dict[str, Json] = (
            {"decision": self.decisions[0].as_json()}
            if self.single
            else {"decisions": [decision.as_json() for decision in self.decisions]}
        )
        return body if self.scoring is None else {**body, "scoring": self.scoring.as_json()}


def _fields(value: object, path: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"{path or 'the request'} must be an object", code="wrong_type", field=path or None
        )
    for key in value:
        if key not in allowed:
            where = _join(path, str(key))
            raise InvalidRequest(
                f"{where} is not a field here; the fields are: {', '.join(allowed)}",
                code="unknown_field",
                field=where,
            )
    return value


def _required(fields: dict[str, Any], name: str, kind: type, path: str) -> Any:
    where = _join(path, name)
    if name not in fields:
        raise InvalidRequest(f"{where} is missing", code="missing_field", field=where)
    value = fields[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidRequest(f"{where} must be {_KINDS[kind]}", code="wrong_type", field=where)
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
