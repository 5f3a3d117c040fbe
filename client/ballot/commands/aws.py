"""AWS as the commands reach it: with the caller's credentials, and errors of the client's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import boto3.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ballot.aws_errors import error_from_botocore

CONFIG = Config(
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "total_max_attempts": 3},
)


@contextmanager
def aws_errors() -> Iterator[None]:
    """Raise what boto3 raises as the BallotError that it means."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise error_from_botocore(error) from error


def make_session(region: str | None) -> boto3.session.Session:
    """Return a session in the Region that is given, of the environment, or of the AWS profile.

    Raises:
        BallotError: what AWS is configured with cannot be used.
    """
    with aws_errors():
        return boto3.session.Session(region_name=region)
