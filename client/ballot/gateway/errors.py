"""The gateway's errors: each carries the HTTP status and the stable code of docs/gateway.md."""

from __future__ import annotations

from typing import Any


class StartupError(Exception):
    """The gateway cannot start. The message says what is wrong and how to mend it."""


class CallerGone(Exception):
    """The caller hung up: whatever is answered, nobody reads it."""


class GatewayError(Exception):
    """A request that gets an error answer, in the shape of its route's protocol.

    `field` is the path of the offending value inside the request, or None.
    """

    status = 500
    code = "internal_error"
    retryable = True
    retry_after_seconds: int | None = None

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.field = field

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the error."""
        if self.retry_after_seconds is None:
            return {}
        return {"retry-after": str(self.retry_after_seconds)}


class InvalidRequest(GatewayError):
    """The body cannot be read as what its route takes."""

    status = 400
    code = "invalid_json"
    retryable = False


class Unauthorized(GatewayError):
    """The gateway has a key, and the request does not carry it."""

    status = 401
    code = "wrong_key"
    retryable = False

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the error."""
        return {"www-authenticate": "Bearer"}


class Foreign(GatewayError):
    """A page of another site sent the request, through the browser of the gateway's user."""

    status = 403
    code = "foreign_host"
    retryable = False


class NotFound(GatewayError):
    """No such route, or none that this gateway has an endpoint for."""

    status = 404
    code = "not_found"
    retryable = False


class MethodNotAllowed(GatewayError):
    """The route exists under other methods, named in `allowed`."""

    status = 405
    code = "method_not_allowed"
    retryable = False

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the error."""
        return {"allow": self.allowed}


class SlowBody(GatewayError):
    """The body did not arrive within the time allowed for it."""

    status = 408
    code = "body_timeout"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the error."""
        return {"connection": "close"}


class TooLarge(GatewayError):
    """The body has more bytes than the limit; the message has both."""

    status = 413
    code = "body_too_large"
    retryable = False


class UnsupportedMediaType(GatewayError):
    """A content type or content encoding that the gateway does not read."""

    status = 415
    code = "unsupported_media_type"
    retryable = False


class Throttled(GatewayError):
    """SageMaker takes no more requests of this account now."""

    status = 429
    code = "throttled"
    retry_after_seconds = 1


class Misconfigured(GatewayError):
    """The endpoint cannot be reached as the gateway is set up: nothing that a caller can mend."""

    status = 502
    code = "endpoint_denied"
    retryable = False


class UpstreamFailed(GatewayError):
    """No answer came from the endpoint, or none that can be read."""

    status = 502
    code = "endpoint_unreachable"


class Busy(GatewayError):
    """The gateway or the endpoint cannot take this request now."""

    status = 503
    code = "gateway_busy"
    retry_after_seconds = 1


class UpstreamTimeout(GatewayError):
    """The endpoint did not answer in time."""

    status = 504
    code = "endpoint_timeout"


class EndpointError(GatewayError):
    """An error that the endpoint's own container answered; `body` is what it sent."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        field: str | None,
        retryable: bool,
        retry_after: str | None,
        body: bytes,
        parsed: Any,
    ) -> None:
        super().__init__(message, code=code, field=field)
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.body = body
        self.parsed = parsed

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the error."""
        # SageMaker drops the container's headers, and an SDK wants to know how long to wait.
        fallback = "1" if self.status in (429, 503, 529) else None
        wait = self.retry_after or fallback
        return {} if wait is None else {"retry-after": wait}
