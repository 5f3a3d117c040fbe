"""The output: one line for each of the input, which is the endpoint's answer, or an error."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ballot.batch.lines import Line
from ballot.errors import BallotError, InvalidAnswer

# Retryable, but not at once: an endpoint that fails a few times in a row stops serving everybody,
# and a line whose time is spent has been tried for all of it.
_NOT_AT_ONCE = frozenset({"scoring_failed", "internal_error", "budget_spent"})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A line of the output, without its line feed, and what it says.

    `code` is the error's, or None where the line is an answer; `retryable` is what the error says.
    `model_sha256` is None where the answer names none, as System One's do not.
    """

    line: bytes
    code: str | None = None
    message: str = ""
    retryable: bool = False
    decisions: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    model_sha256: str | None = None

    @property
    def passing(self) -> bool:
        """Whether the same line may well be answered a moment later."""
        return self.retryable and self.code not in _NOT_AT_ONCE


def read_answer(line: bytes, *, place: int, number: int) -> Answer:
    """Read the answer to line `number` of the input, which was line `place` of its request.

    An error says which line it is of, so that it gets the input's number in place of the
    request's; any other line stays as it is, byte for byte.

    Raises:
        InvalidAnswer: that is no answer to such a line.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _invalid(number, "is not JSON") from error
    if not isinstance(value, dict):
        raise _invalid(number, "is not an object")
    if "line" not in value:
        return _scored(line, value, number)
    if value["line"] not in (place, number):
        raise _invalid(number, f"is of line {value['line']!r} of the request, not {place}")
    return _error({**value, "line": number})


def own_error(error: BallotError, line: Line) -> Answer:
    """Return the line for an input line that got no answer of its own, as the endpoint has it."""
    said = {
        "error": error.message,
        "code": error.code,
        "retryable": error.retryable,
        "field": error.field,
        "request_id": error.request_id,
        "line": line.number,
    }
    id_ = _readable_id(line.content)
    return _error(said if id_ is None else {**said, "id": id_})


def _readable_id(line: bytes) -> str | None:
    """Return the id of the one decision of a request."""
    try:
        id_ = json.loads(line)["decision"]["id"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return id_ if isinstance(id_, str) else None


@dataclass
class Tally:
    """Counts what has been answered."""

    lines: int = 0
    decisions: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    retryable: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            lines=self.lines + other.lines,
            decisions=self.decisions + other.decisions,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            retryable=self.retryable + other.retryable,
            errors=self.errors + other.errors,
        )

    def add(self, answers: Iterable[Answer]) -> None:
        """Count some more."""
        for answer in answers:
            self.lines += 1
            self.decisions += answer.decisions
            self.input_tokens += answer.input_tokens
            self.cached_tokens += answer.cached_tokens
            self.retryable += answer.retryable
            if answer.code is not None:
                self.errors[answer.code] += 1


def _scored(line: bytes, value: Mapping[str, Any], number: int) -> Answer:
    results = [value["result"]] if "result" in value else value.get("results")
    try:
        if results is None:
            return Answer(
                line=line,
                decisions=len(value["answers"]),
                input_tokens=int(value["usage"]["input_tokens"]),
            )
        (sha256,) = {str(result["model"]["sha256"]) for result in results}
        return Answer(
            line=line,
            decisions=len(results),
            input_tokens=sum(int(result["input_tokens"]) for result in results),
            cached_tokens=sum(int(result["cached_tokens"]) for result in results),
            model_sha256=sha256,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid(number, "is neither a result nor an error") from error


def _error(value: Mapping[str, Any]) -> Answer:
    """Read an error in the native shape, or in one of System One's."""
    detail = value.get("detail")
    said = detail[0] if isinstance(detail, list) and detail else detail
    said = said if isinstance(said, dict) else value
    code = str(said.get("code") or said.get("error_type") or said.get("type") or "unknown")
    message = said.get("error") or said.get("message") or said.get("msg") or code
    retryable = value.get("retryable", value.get("x_retryable"))
    return Answer(
        line=json.dumps(value, separators=(",", ":")).encode(),
        code=code,
        message=str(message),
        retryable=retryable is True,
    )


def _invalid(number: int, what: str) -> InvalidAnswer:
    return InvalidAnswer(f"the answer to line {number} {what}", code="invalid_answer")
