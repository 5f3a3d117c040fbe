"""Errors as types: each carries the stable code, the status and the request id it came with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SHOWN_CHARACTERS = 500
# Each means "not now" rather than "never": the endpoint, or what stands before it, is overloaded,
# starting, draining, or lost the request on the way.
_UNAVAILABLE = frozenset({429, 502, 503, 504, 529})


class BallotError(Exception):
    """A request that got no result.

    `code` is stable: match on it (docs/errors.md lists the endpoint's), not on the text. `status`
    is the HTTP status, or None where there was no answer. `request_id` is what the log has.
    `retryable` says whether the same request can succeed later. `field` is the path of the first
    wrong value in the request, such as `decisions[3].question`.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "unknown",
        status: int | None = None,
        request_id: str | None = None,
        retryable: bool = False,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id
        self.retryable = retryable
        self.field = field


class InvalidRequest(BallotError):
    """The request is understood and wrong: 400, 404, 405, 408, 413, 415, 422."""


class Unavailable(BallotError):
    """The endpoint cannot take the request now: 429, 502, 503, 504, 529, or SageMaker says so.

    `retry_after` is how many seconds to wait before the next try, where the answer says it.
    """

    retry_after: float | None = None


class ScoringFailed(BallotError):
    """The endpoint failed on the request: 500 and other 5xx."""


class TransportFailed(BallotError):
    """There is no whole answer: connection, name look-up, TLS, a time-out, a broken stream."""


class AccessDenied(BallotError):
    """The key or the AWS credentials are missing, wrong, expired, or lack a permission."""


class EndpointNotFound(BallotError):
    """There is no such SageMaker endpoint in service in this account and Region."""


class InvalidAnswer(BallotError):
    """The answer says success and is not what the contract says."""


class DeadlineExceeded(BallotError):
    """The budget of time is spent, or too little is left to try again.

    `last` is the error of the last attempt, or None where there was none.
    """

    last: BallotError | None = None


def error_from_answer(status: int, headers: Mapping[str, str], body: bytes) -> BallotError:
    """Return the error that an answer other than 2xx means.

    `headers` have names in lower case. The body may have the native shape, System One's or
    OpenAI's, be cut off (SageMaker shortens a container's), or be none of ours.
    """
    said = _read_body(body)
    error = _kind(status)(
        said.get("message") or _plain_text(body) or f"the endpoint answered {status}",
        code=said.get("code") or f"http_{status}",
        status=status,
        request_id=said.get("request_id") or request_id(headers),
        retryable=said.get("retryable", status == 408 or status in _UNAVAILABLE),
        field=said.get("field"),
    )
    if isinstance(error, Unavailable):
        error.retry_after = _retry_after(headers)
    return error


def _kind(status: int) -> type[BallotError]:
    if status in (401, 403):
        return AccessDenied
    if status in _UNAVAILABLE:
        return Unavailable
    if 400 <= status < 500:
        return InvalidRequest
    return ScoringFailed if status >= 500 else InvalidAnswer


def _read_body(body: bytes) -> dict[str, Any]:
    """Return what the body says of `message`, `code`, `request_id`, `retryable` and `field`."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    error, detail = value.get("error"), value.get("detail")
    if isinstance(error, str):
        return _typed({**value, "message": error})
    if isinstance(error, dict):
        names = [name for name in (error.get("code"), error.get("type")) if isinstance(name, str)]
        return _typed({**error, "code": next(iter(names), None), "field": error.get("param")})
    if isinstance(detail, dict):
        return _typed({**detail, "code": detail.get("error_type")})
    if isinstance(detail, list):
        return _validation(detail)
    return _typed({"message": detail or value.get("message")})


def _typed(said: dict[str, Any]) -> dict[str, Any]:
    kinds = {"message": str, "code": str, "request_id": str, "retryable": bool, "field": str}
    return {name: said[name] for name, kind in kinds.items() if isinstance(said.get(name), kind)}


def _validation(detail: list[Any]) -> dict[str, Any]:
    """Return what System One's list of validation errors says; it begins with the first."""
    problems = [item for item in detail if isinstance(item, dict)]
    if not problems:
        return {}
    steps = problems[0].get("loc")
    path = [str(step) for step in steps if step != "body"] if isinstance(steps, list) else []
    texts = [str(problem.get("msg")) for problem in problems]
    where = ".".join(path)
    return _typed(
        {
            "message": "; ".join([f"{where}: {texts[0]}" if where else texts[0], *texts[1:]]),
            "code": problems[0].get("type"),
            "field": where or None,
        }
    )


def _plain_text(body: bytes) -> str:
    text = " ".join(body.decode(errors="replace").split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def request_id(headers: Mapping[str, str]) -> str | None:
    """Return the request id that an answer's headers name; their names are in lower case."""
    names = ("x-request-id", "x-typesafe-request-id", "x-amzn-requestid")
    return next((headers[name] for name in names if name in headers), None)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`; a date, or no number at all, is no advice."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
