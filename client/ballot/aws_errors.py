"""What botocore raises, as the client's own errors."""

from __future__ import annotations

from typing import Any

from botocore import exceptions as aws

from ballot.errors import (
    AccessDenied,
    BallotError,
    EndpointNotFound,
    InvalidRequest,
    TransportFailed,
    Unavailable,
)
from ballot.faults import connection_fault

_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "NotAuthorized",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
# Codes of `AccessDenied` that other credentials would mend.
CREDENTIAL_CODES = _DENIED - {"AccessDenied", "AccessDeniedException", "NotAuthorized"} | {
    "no_credentials"
}
# SageMaker sends the first two with a status of the 400s.
_THROTTLED = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ModelNotReadyException",
        "RequestLimitExceeded",
        "TooManyRequestsException",
    }
)
_FAILED = frozenset(
    {
        "InternalDependencyException",
        "InternalFailure",
        "InternalServerError",
        "InternalServerException",
        "InternalStreamFailure",
        "ServiceUnavailable",
        "ServiceUnavailableException",
    }
)
_NO_CREDENTIALS = (
    aws.ConfigNotFound,
    aws.ConfigParseError,
    aws.CredentialRetrievalError,
    aws.InvalidConfigError,
    aws.LoginError,
    aws.MetadataRetrievalError,
    aws.MissingDependencyException,
    aws.NoAuthTokenError,
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.ProfileNotFound,
    aws.RefreshWithMFAUnsupportedError,
    aws.SSOError,
    aws.TokenRetrievalError,
    aws.UnknownCredentialError,
    aws.UnknownTokenProviderError,
)
_BROKEN_CONNECTION = (aws.ConnectionError, aws.HTTPClientError, aws.IncompleteReadError)
_NO_REGION = (aws.InvalidRegionError, aws.NoRegionError)
_NOT_IN_SERVICE = ("not found", "not in service")


def error_from_botocore(error: Exception) -> BallotError:
    """Return the error that an exception of botocore means, other than SageMaker's ModelError."""
    if isinstance(error, aws.EventStreamError):
        return TransportFailed(f"the answer broke off: {error}", code=_code(error), retryable=True)
    if isinstance(error, aws.ClientError):
        return _refusal(error)
    if isinstance(error, _NO_CREDENTIALS):
        return AccessDenied(str(error), code="no_credentials")
    if isinstance(error, _NO_REGION):
        return EndpointNotFound(str(error), code="no_region")
    if isinstance(error, _BROKEN_CONNECTION):
        timed_out = isinstance(error, (aws.ConnectTimeoutError, aws.ReadTimeoutError))
        return connection_fault(error, timed_out=timed_out)
    return InvalidRequest(str(error), code="invalid_aws_request")


def _refusal(error: Any) -> BallotError:
    """Return the error that an answer of the AWS API itself means, before any container."""
    metadata = error.response.get("ResponseMetadata", {})
    code, status = _code(error), metadata.get("HTTPStatusCode")
    kind = _kind(code, status or 0, str(error))
    return kind(
        str(error),
        code=code,
        status=status,
        request_id=metadata.get("RequestId"),
        retryable=kind is Unavailable,
    )


def _kind(code: str, status: int, message: str) -> type[BallotError]:
    if code in _DENIED or status in (401, 403):
        return AccessDenied
    if code in _THROTTLED or code in _FAILED or status == 429 or status >= 500:
        return Unavailable
    if code == "ValidationError" and any(text in message for text in _NOT_IN_SERVICE):
        return EndpointNotFound
    return InvalidRequest


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))
