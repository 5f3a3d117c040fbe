"""A connection that failed: which error it is, and whether it can mend by itself."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from ballot.errors import TransportFailed


def connection_fault(error: BaseException, *, timed_out: bool) -> TransportFailed:
    """Return the error for a connection that could not be made, broke, or stayed silent."""
    text = str(error) or type(error).__name__
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        return TransportFailed(text, code="untrusted_certificate")
    code = "timed_out" if timed_out else "connection_failed"
    return TransportFailed(text, code=code, retryable=True)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
