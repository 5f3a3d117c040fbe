"""What went wrong, as one line that says what to do about it, and the exit status it means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ballot.batch.errors import BatchError, BatchFailed
from ballot.commands.screen import printable
from ballot.commands.status import Status
from ballot.errors import (
    AccessDenied,
    BallotError,
    DeadlineExceeded,
    EndpointNotFound,
    InvalidAnswer,
    InvalidRequest,
    ScoringFailed,
    TransportFailed,
    Unavailable,
)
from ballot.quality.gate import GateError
from ballot.quality.runs import RunError


class Problem(Exception):
    """What a command itself finds wrong: what it is, and what to do about it."""

    status = Status.FAILED

    def __init__(self, message: str, *, advice: str) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


class Unusable(Problem):
    """What the user gave cannot be used: an option, a file, a request."""

    status = Status.USAGE


class CheckFailed(Problem):
    """A check of `ballot doctor` found something wrong."""


@dataclass(frozen=True)
class Fault:
    """What happened, what to do, and how the command ends."""

    what: str
    advice: str
    status: Status

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.what}; {self.advice}" if self.advice else self.what


_SIGN_IN = "sign in (again): `aws sso login`, `aws configure`, or another AWS_PROFILE"
_PERMISSION = "have the permission that it names granted to you, or take another AWS_PROFILE"
_ADVICE_BY_CODE = {
    "AccessDenied": _PERMISSION,
    "AccessDeniedException": _PERMISSION,
    "ExpiredToken": _SIGN_IN,
    "ExpiredTokenException": _SIGN_IN,
    "InvalidClientTokenId": _SIGN_IN,
    "InvalidSignatureException": "check the secret key, and this machine's clock",
    "SignatureDoesNotMatch": "check the secret key, and this machine's clock",
    "UnrecognizedClientException": _SIGN_IN,
    "bad_data": "mend the data; docs/evaluate.md describes it",
    "bad_mapping": "mend the mapping, or the header; docs/evaluate.md describes both",
    "body_too_large": "shorten the state, or ask fewer decisions at a time",
    "broken_stream": "try again",
    "busy": "try again later; add instances if it happens often",
    "draining": "try again: another container answers",
    "loading": "wait until the endpoint is in service",
    "no_credentials": _SIGN_IN,
    "no_data": "give --data a folder that holds the files",
    "no_region": "give --region, or set AWS_REGION",
    "not_found": "check the URL: it is the server's, without a path",
    "other_data": "fetch it again at that commit",
    "too_many_options": "decide in two steps: a group first, then within it",
    "too_many_tokens": "shorten the state, the question or the descriptions",
    "unsupported_media_type": "update the endpoint: it knows no JSON lines yet",
    "untrusted_certificate": "name the authority's certificate: AWS_CA_BUNDLE, or SSL_CERT_FILE",
    "worker_failed": "try again once the container is replaced",
}
_ADVICE: tuple[tuple[type[BallotError], str, Status], ...] = (
    (InvalidRequest, "mend the request", Status.FAILED),
    (ScoringFailed, "try again; if it fails again, look into the endpoint's log", Status.FAILED),
    (InvalidAnswer, "check that it is a Ballot endpoint, and update ballot", Status.FAILED),
    (Unavailable, "try again later; `ballot doctor` tells more", Status.UNREACHABLE),
    (TransportFailed, "check the address and the network", Status.UNREACHABLE),
    (
        AccessDenied,
        "check the key (BALLOT_GATEWAY_KEY), or the AWS credentials",
        Status.UNREACHABLE,
    ),
    (
        EndpointNotFound,
        "check name and Region: `ballot endpoints -c ENVIRONMENT` lists those there are",
        Status.UNREACHABLE,
    ),
    (DeadlineExceeded, "give it more time with --timeout, or try later", Status.UNREACHABLE),
    (RunError, "", Status.USAGE),
    (BatchFailed, "", Status.FAILED),
    (BatchError, "", Status.USAGE),
    (GateError, "", Status.USAGE),
)
_BOTOCORE_PREAMBLE = re.compile(r"An error occurred \(\w+\) when calling the (\w+) operation: ")
_BUG_ADVICE = "this is a bug: please report it; BALLOT_DEBUG=1 shows where it happened"


def explain(error: Exception) -> Fault:
    """Return what `error` means to the user of a command."""
    match error:
        case Problem():
            return Fault(printable(error.message), error.advice, error.status)
        case BallotError():
            return _explain_ours(error)
        case OSError():
            reason = error.strerror or str(error)
            return Fault(f"cannot write the output: {printable(reason)}", "", Status.FAILED)
        case _:
            what = printable(f"{type(error).__name__}: {error}")
            return Fault(what, _BUG_ADVICE, Status.FAILED)


def _explain_ours(error: BallotError) -> Fault:
    advice, status = next(
        ((advice, status) for kind, advice, status in _ADVICE if isinstance(error, kind)),
        ("", Status.FAILED),
    )
    if isinstance(error, InvalidRequest) and error.status is None:
        status = Status.USAGE  # found before anything was sent
    return Fault(_told(error), _ADVICE_BY_CODE.get(error.code, advice), status)


def _told(error: BallotError) -> str:
    message = _BOTOCORE_PREAMBLE.sub(r"\1: ", error.message)
    marks = [error.code, f"request {error.request_id}" if error.request_id else ""]
    return printable(f"{message} ({', '.join(filter(None, marks))})")
