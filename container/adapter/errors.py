"""Errors as types: each carries the HTTP status and the stable code that a caller may match on."""

from __future__ import annotations

from typing import Any


class StartupError(Exception):
    """The adapter cannot start. The message says what is wrong and how to mend it, in one line."""


class ScoringError(Exception):
    """llama.cpp could not score a valid decision: an internal fault, never the caller's."""


class NotFinite(ScoringError):
    """The model returned logits that are NaN or infinite."""


class ModelChanged(Exception):
    """The model's files are no longer what was loaded: there can be no more answers."""


class WorkerFailed(Exception):
    """The worker ended before its time, and with it the adapter. The message says why."""


class RequestError(Exception):
    """A request that gets an error answer.

    `status` and `code` are part of the wire contract and fixed for each subclass or instance;
    `field` is the path of the offending value inside the request, or None.
    """

    status = 400
    code = "invalid_request"
    retryable = False
    retry_after_seconds: int | None = None

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.field = field

    def as_json(self, request_id: str) -> dict[str, Any]:
        """Return the body of the error answer."""
        return {
            "error": self.message,
            "code": self.code,
            "retryable": self.retryable,
            "field": self.field,
            "request_id": request_id,
        }


class InvalidRequest(RequestError):
    """The request is understood and wrong; sending it again cannot help.

    `loc` leads to the offending value key by key, for a wire format that tells it so.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        loc: tuple[str | int, ...] = (),
    ) -> None:
        super().__init__(message, code=code, field=field)
        self.loc = loc


class UnknownModel(RequestError):
    """The request names a model that does not answer here."""

    code = "unknown_model"


class MalformedHttp(RequestError):
    """The bytes on the connection are not an HTTP request."""

    code = "malformed_http"


class NotFound(RequestError):
    """No such route."""

    status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The route exists under other methods, named in `allowed`."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class SlowHead(RequestError):
    """The line and the headers of a request did not arrive within the time allowed for them."""

    status = 408
    code = "head_timeout"
    retryable = True


class SlowBody(RequestError):
    """The body did not arrive within the time allowed for it."""

    status = 408
    code = "body_timeout"
    retryable = True


class TooLarge(RequestError):
    """The body has more bytes, or the prompt more tokens, than the limit; the message has both."""

    status = 413
    code = "body_too_large"


class UnsupportedMediaType(RequestError):
    """A content type or content encoding that the adapter does not read."""

    status = 415
    code = "unsupported_media_type"


class Unavailable(RequestError):
    """The adapter cannot take this request now: loading, busy, draining, late or out of order."""

    status = 503
    code = "busy"
    retryable = True

    def __init__(self, message: str, *, code: str, retry_after_seconds: int) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class ScoringFailed(RequestError):
    """A scoring failed inside the adapter; the caller learns no internals."""

    status = 500
    code = "scoring_failed"
    retryable = True
