"""What became of a request that failed: what its caller is told, and what only the log is."""

from __future__ import annotations

import logging

from adapter.errors import RequestError, ScoringError, ScoringFailed
from adapter.logs import log, origin


def told(error: Exception, request_id: str) -> RequestError:
    """Return the error that the caller gets for `error`; log what it says of the inside."""
    if isinstance(error, ScoringFailed):
        log(logging.ERROR, "scoring_failed", request_id=request_id, cause=_cause(error))
    if isinstance(error, RequestError):
        return error
    log(logging.ERROR, "bug", request_id=request_id, cause=origin(error))
    return ScoringFailed("the adapter failed on this request", code="internal_error")


def _cause(error: BaseException) -> str:
    """Return why a scoring failed; what is not said by this package may quote the prompt."""
    cause = error.__cause__ or error
    return repr(cause) if isinstance(cause, ScoringError) else origin(cause)
