"""The three protocols that the gateway speaks: their errors, and how their answers are told."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ballot.gateway.errors import EndpointError, GatewayError, InvalidRequest, Unauthorized

_SHOWN_CHARACTERS = 400
_STEP = re.compile(r"[^.\[\]]+")
_RETRYABLE = (408, 425, 429, 500, 502, 503, 504, 529)


@dataclass(frozen=True)
class ErrorAnswer:
    """An error as it is sent; `request_id` is the one that the body names, or None."""

    status: int
    body: bytes
    request_id: str | None = None


class Protocol(ABC):
    """A wire format of requests, answers and errors."""

    answer_keys: tuple[str, ...]
    """A successful answer is an object that has one of them."""

    def is_answer(self, body: bytes) -> bool:
        """Whether `body` is a successful answer, and whole."""
        parsed = parse(body)
        return isinstance(parsed, dict) and any(key in parsed for key in self.answer_keys)

    def render(self, error: GatewayError, request_id: str) -> ErrorAnswer:
        """Return an error in this protocol's shape; the endpoint's own as it came, if it is one."""
        if isinstance(error, EndpointError) and self._is_error(error.parsed):
            return ErrorAnswer(error.status, error.body, self._id_of(error.parsed))
        status, body = self._render(error, request_id)
        return ErrorAnswer(status, json.dumps(body).encode())

    @abstractmethod
    def _is_error(self, parsed: Any) -> bool:
        """Whether a JSON value is an error of this protocol."""

    @abstractmethod
    def _render(self, error: GatewayError, request_id: str) -> tuple[int, dict[str, Any]]:
        """Return status and body of an error."""

    def _id_of(self, parsed: dict[str, Any]) -> str | None:
        """Return the request id that an error of this protocol names."""
        return _text(parsed.get("request_id") or parsed.get("x_request_id"))


class Native(Protocol):
    """The adapter's own: docs/errors.md. `/invocations` takes System One's questions too."""

    answer_keys = ("result", "results", "answers")

    def _is_error(self, parsed: Any) -> bool:
        if not isinstance(parsed, dict):
            return False
        return isinstance(parsed.get("error"), str) or "detail" in parsed

    def _render(self, error: GatewayError, request_id: str) -> tuple[int, dict[str, Any]]:
        return error.status, {
            "error": error.message,
            "code": error.code,
            "retryable": error.retryable,
            "field": error.field,
            "request_id": request_id,
        }


class SystemOne(Protocol):
    """TypeSafe's System One: a list of places where a body is wrong, type and message elsewhere."""

    answer_keys = ("answers",)

    def _is_error(self, parsed: Any) -> bool:
        return isinstance(parsed, dict) and isinstance(parsed.get("detail"), dict | list)

    def _render(self, error: GatewayError, request_id: str) -> tuple[int, dict[str, Any]]:
        beyond = {"x_retryable": error.retryable, "x_request_id": request_id}
        if isinstance(error, InvalidRequest) or error.status in (400, 422):
            place = ["body", *_steps(error.field)]
            detail = [{"loc": place, "msg": error.message, "type": error.code}]
            return 422, {"detail": detail, **beyond}
        kind = "authentication_error" if isinstance(error, Unauthorized) else error.code
        described = {"error_type": kind, "message": error.message, "x_field": error.field}
        return error.status, {"detail": described, **beyond}


class OpenAI(Protocol):
    """OpenAI's chat completions."""

    answer_keys = ("choices",)

    def _is_error(self, parsed: Any) -> bool:
        return isinstance(parsed, dict) and isinstance(parsed.get("error"), dict)

    def _render(self, error: GatewayError, request_id: str) -> tuple[int, dict[str, Any]]:
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
            error.status, "invalid_request_error" if error.status < 500 else "server_error"
        )
        described = {
            "message": error.message,
            "type": kind,
            "param": error.field,
            "code": error.code,
        }
        return error.status, {"error": described}


def parse(body: bytes) -> Any:
    """Return a body's JSON value, or None where it is not one JSON text in UTF-8."""
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def endpoint_error(status: int, body: bytes, *, retry_after: str | None) -> EndpointError:
    """Return the error that an endpoint's container answered, in whatever shape it did."""
    parsed = parse(body)
    said = _said(parsed)
    retryable = said.get("retryable")
    message = _text(said.get("message"))
    return EndpointError(
        message or f"the endpoint answered {status} and nothing that can be read",
        status=status,
        code=_text(said.get("code")) or "endpoint_error",
        field=_text(said.get("field")),
        retryable=retryable if isinstance(retryable, bool) else status in _RETRYABLE,
        retry_after=retry_after,
        body=body,
        parsed=parsed,
    )


def _said(parsed: Any) -> dict[str, Any]:
    """Return what an error of any of the protocols says: message, code, field, retryable."""
    if not isinstance(parsed, dict):
        return {}
    error, detail = parsed.get("error"), parsed.get("detail")
    if isinstance(error, str):
        return {**parsed, "message": error}
    if isinstance(error, dict):
        code = _text(error.get("code")) or error.get("type")
        return {"message": error.get("message"), "code": code, "field": error.get("param")}
    retryable = parsed.get("x_retryable")
    if isinstance(detail, dict):
        return {**detail, "code": detail.get("error_type"), "retryable": retryable}
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        first = detail[0]
        steps = first.get("loc")
        field = ".".join(str(step) for step in steps[1:]) if isinstance(steps, list) else None
        return {"message": first.get("msg"), "code": first.get("type"), "field": field}
    return {"message": detail}


def _text(value: Any) -> str | None:
    return value[:_SHOWN_CHARACTERS] if isinstance(value, str) and value else None


def _steps(field: str | None) -> list[str | int]:
    """Return the keys and indexes of a path such as `decisions[3].question`."""
    steps = _STEP.findall(field or "")
    return [int(step) if step.isdecimal() and len(step) < 10 else step for step in steps]
