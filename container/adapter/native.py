"""Ballot's own wire format: `{"decision": {...}}` or `{"decisions": [...]}` in, results out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from adapter.decision import LAYOUTS, ORDERS, Decision, Json, Option, Scoring, kind_of
from adapter.errors import InvalidRequest, RequestError
from adapter.scorer import ModelIdentity, Scored
from adapter.wire import ErrorAnswer, Limits, RequestTiming, Terms, WireFormat

MAX_ID_CHARACTERS = 256
MIN_OPTIONS = 2
DEFAULT_SCORING = Scoring()
READOUT = "quantized last-position logits restricted to declared answer slots; no generated tokens"

Choice = TypeVar("Choice", int, str)


@dataclass(frozen=True)
class NativeRequest:
    """The parsed request; `single` remembers which of the two forms the answer must take."""

    decisions: tuple[Decision, ...]
    single: bool
    scoring: Scoring

    def path(self, index: int) -> str:
        """Return where in the request its decision number `index` stands."""
        return "decision" if self.single else f"decisions[{index}]"

    def render(
        self, scored: tuple[Scored, ...], *, model: ModelIdentity, timing: RequestTiming
    ) -> dict[str, Any]:
        """Return the answer in the form of the request: `result`, or `results` with `timing`."""
        results = [
            _result(decision, score, model=model, timing=timing)
            for decision, score in zip(self.decisions, scored, strict=True)
        ]
        if self.single:
            return {"result": results[0]}
        return {"results": results, "timing": timing.as_json()}


def readable_id(body: Json) -> str | None:
    """Return the id of a body's one decision, whatever else is wrong with the body."""
    decision = body.get("decision") if isinstance(body, dict) else None
    identifier = decision.get("id") if isinstance(decision, dict) else None
    if not isinstance(identifier, str) or not identifier.strip():
        return None
    return identifier if len(identifier) <= MAX_ID_CHARACTERS else None


def parse_request(body: Json, limits: Limits, defaults: Scoring = DEFAULT_SCORING) -> NativeRequest:
    """Validate a parsed body; `defaults` stand where it does not say how to score.

    Raises:
        InvalidRequest: naming the first wrong field by its path.
    """
    request = _object(body, "")
    if "decision" in request and "decisions" in request:
        raise InvalidRequest("give decision or decisions, not both", code="ambiguous_request")
    _only_keys(request, "", ("decision", "decisions", "scoring"))
    scoring = (
        _scoring(request["scoring"], "scoring", defaults) if "scoring" in request else defaults
    )
    if "decision" in request:
        decision = _decision(request["decision"], "decision", limits)
        return NativeRequest((decision,), single=True, scoring=scoring)
    decisions = _decisions(_required(request, "", "decisions"), limits)
    return NativeRequest(decisions, single=False, scoring=scoring)


def _decisions(value: Json, limits: Limits) -> tuple[Decision, ...]:
    items = _list(
        value, "decisions", lowest=1, highest=limits.decisions, too_many="too_many_decisions"
    )
    decisions = tuple(
        _decision(item, f"decisions[{index}]", limits) for index, item in enumerate(items)
    )
    _unique([decision.id for decision in decisions], "decisions")
    return decisions


def _decision(value: Json, path: str, limits: Limits) -> Decision:
    fields = _object(value, path)
    _only_keys(fields, path, ("id", "state", "question", "options"))
    return Decision(
        id=_id(_required(fields, path, "id"), f"{path}.id"),
        state=_required(fields, path, "state"),
        question=_text(_required(fields, path, "question"), f"{path}.question"),
        options=_options(_required(fields, path, "options"), f"{path}.options", limits),
    )


def _options(value: Json, path: str, limits: Limits) -> tuple[Option, ...]:
    items = _list(
        value, path, lowest=MIN_OPTIONS, highest=limits.options, too_many="too_many_options"
    )
    options = tuple(_option(item, f"{path}[{index}]") for index, item in enumerate(items))
    _unique([option.id for option in options], path)
    return options


def _option(value: Json, path: str) -> Option:
    fields = _object(value, path)
    _only_keys(fields, path, ("id", "description"))
    return Option(
        id=_id(_required(fields, path, "id"), f"{path}.id"),
        description=_text(_required(fields, path, "description"), f"{path}.description"),
    )


def _scoring(value: Json, path: str, defaults: Scoring) -> Scoring:
    fields = _object(value, path)
    _only_keys(fields, path, ("orders", "layout"))
    orders = _one_of(fields.get("orders", defaults.orders), f"{path}.orders", ORDERS)
    layout = _one_of(fields.get("layout", defaults.layout), f"{path}.layout", LAYOUTS)
    return Scoring(layout=layout, orders=orders)


def _one_of(value: Json, path: str, allowed: tuple[Choice, ...]) -> Choice:
    # bool is an int in Python, and 1.0 equals 1: only the very type is the declared value.
    for choice in allowed:
        if type(value) is type(choice) and value == choice:
            return choice
    choices = ", ".join(str(choice) for choice in allowed)
    raise InvalidRequest(f"{path} must be one of: {choices}", code="unsupported_value", field=path)


def _object(value: Json, path: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"{path or 'the body'} must be an object, not {kind_of(value)}",
            code="wrong_type",
            field=path or None,
        )
    return value


def _list(value: Json, path: str, *, lowest: int, highest: int, too_many: str) -> list[Json]:
    if not isinstance(value, list):
        raise InvalidRequest(
            f"{path} must be an array, not {kind_of(value)}", code="wrong_type", field=path
        )
    if len(value) < lowest:
        raise InvalidRequest(
            f"{path} needs at least {lowest}, got {len(value)}", code="too_few_items", field=path
        )
    if len(value) > highest:
        raise InvalidRequest(
            f"{path} has {len(value)}; this endpoint takes at most {highest}",
            code=too_many,
            field=path,
        )
    return value


def _text(value: Json, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(
            f"{path} must be a string, not {kind_of(value)}", code="wrong_type", field=path
        )
    if not value.strip():
        raise InvalidRequest(f"{path} is empty", code="empty_value", field=path)
    return value


def _id(value: Json, path: str) -> str:
    text = _text(value, path)
    if len(text) > MAX_ID_CHARACTERS:
        raise InvalidRequest(
            f"{path} has {len(text)} characters; the limit is {MAX_ID_CHARACTERS}",
            code="id_too_long",
            field=path,
        )
    return text


def _required(fields: dict[str, Json], path: str, key: str) -> Json:
    if key not in fields:
        where = f"{path}.{key}" if path else key
        raise InvalidRequest(f"{where} is missing", code="missing_field", field=where)
    return fields[key]


def _only_keys(fields: dict[str, Json], path: str, allowed: tuple[str, ...]) -> None:
    for key in fields:
        if key not in allowed:
            where = f"{path}.{key}" if path else key
            raise InvalidRequest(
                f"{where[:200]} is not a field here; the fields are: {', '.join(allowed)}",
                code="unknown_field",
                field=where[:200],
            )


def _unique(ids: list[str], path: str) -> None:
    seen: set[str] = set()
    for item in ids:
        if item in seen:
            raise InvalidRequest(
                f"{path} holds the id {item[:80]!r} twice", code="duplicate_id", field=path
            )
        seen.add(item)


def _result(
    decision: Decision, scored: Scored, *, model: ModelIdentity, timing: RequestTiming
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "id": decision.id,
        "option_ids": [option.id for option in decision.options],
        **_scores(scored),
        "prompt_version": scored.prompt_version,
        "calibration": scored.calibration_json,
        "model": model.as_json(),
        "readout": READOUT,
        "timing": {
            "queue_seconds": timing.queue_seconds,
            "forward_seconds": scored.forward_seconds,
            "total_seconds": timing.total_seconds,
        },
    }
    if scored.orders:
        result["orders"] = [_scores(order) for order in scored.orders]
        result["orders_agree"] = scored.orders_agree
    return result


def _scores(scored: Scored) -> dict[str, Any]:
    return {
        "probabilities": list(scored.probabilities),
        "option_logits": list(scored.option_logits),
        "answer_token_ids": list(scored.answer_token_ids),
        "input_tokens": scored.input_tokens,
        "cached_tokens": scored.cached_tokens,
        "allowed_token_mass": scored.allowed_token_mass,
        "prompt_sha256": scored.prompt_sha256,
    }


def _parse(body: Json, terms: Terms) -> NativeRequest:
    return parse_request(body, terms.limits, terms.scoring)


def _render_error(error: RequestError, request_id: str) -> ErrorAnswer:
    return ErrorAnswer(error.status, error.as_json(request_id))


WIRE = WireFormat(parse=_parse, render_error=_render_error, request_id_headers=("x-request-id",))
