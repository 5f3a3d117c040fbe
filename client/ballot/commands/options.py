"""Options that several commands have, and what they come to: who is to be asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from ballot.client import Ballot
from ballot.commands.explain import Unusable
from ballot.errors import DeadlineExceeded, TransportFailed
from ballot.retry import RetryPolicy
from ballot.transport import JSON_LINES, HttpTransport, SageMakerTransport

EndpointName = Annotated[
    str | None,
    typer.Option("-e", "--endpoint", metavar="NAME", help="The SageMaker endpoint to ask."),
]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The adapter or gateway to ask, instead."),
]
# boto3 alone would only heed AWS_DEFAULT_REGION; the AWS CLI heeds both, this one first.
Region = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="REGION",
        envvar="AWS_REGION",
        show_envvar=False,
        help="The AWS Region, if not your environment's.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        envvar="BALLOT_GATEWAY_KEY",
        show_envvar=False,
        help="The gateway's key; better in BALLOT_GATEWAY_KEY.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", help="The time for all tries together."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
DEFAULT_TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """Who is to be asked: a SageMaker endpoint or a server, exactly one of the two."""

    endpoint_name: str | None
    url: str | None
    region: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if bool(self.endpoint_name) == bool(self.url):
            raise Unusable("give one of --endpoint and --url", advice="see --help")

    @property
    def name(self) -> str:
        """What to call it; without the password that a URL may hold."""
        if self.endpoint_name:
            return self.endpoint_name
        scheme, separator, rest = (self.url or "").partition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2]}"

    @contextmanager
    def connect(self, *, timeout_seconds: float) -> Iterator[Ballot]:
        """Give a client of it, which gives up after `timeout_seconds`.

        Raises:
            Unusable: that is no time.
            BallotError: the URL is none; or what the client raises, where nothing was reached
                with the target's name.
        """
        with self._client(timeout_seconds) as client, self._named():
            yield client

    @contextmanager
    def connect_lines(self) -> Iterator[HttpTransport | SageMakerTransport]:
        """Give what sends JSON lines to it.

        Raises:
            BallotError: the URL is none; or what is raised meanwhile, where nothing was reached
                with the target's name.
        """
        transport: HttpTransport | SageMakerTransport
        if self.endpoint_name:
            transport = SageMakerTransport(
                self.endpoint_name, region=self.region, content_type=JSON_LINES
            )
        else:
            transport = HttpTransport(self.url or "", key=self.key, content_type=JSON_LINES)
        with closing(transport), self._named():
            yield transport

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the target in what is raised where nothing was reached."""
        try:
            yield
        except (DeadlineExceeded, TransportFailed) as error:
            error.message = f"{self.name}: {error.message}"
            raise

    def _client(self, timeout_seconds: float) -> Ballot:
        policy = retry_policy(timeout_seconds)
        if self.url:
            return Ballot(url=self.url, key=self.key, retry=policy)
        return Ballot(endpoint_name=self.endpoint_name, region=self.region, retry=policy)


def retry_policy(timeout_seconds: float) -> RetryPolicy:
    """Return the policy that gives up after `timeout_seconds`.

    Raises:
        Unusable: that is no time.
    """
    try:
        return RetryPolicy(budget_seconds=timeout_seconds)
    except ValueError as error:
        raise Unusable(f"--timeout {timeout_seconds}: {error}", advice="see --help") from error
