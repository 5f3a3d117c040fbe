"""`ballot gateway`: serves the System One and OpenAI APIs in front of endpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from ballot.commands.explain import Unusable
from ballot.commands.options import EndpointName, Region, Url
from ballot.gateway import GatewaySettings, SageMakerTarget, StartupError, UrlTarget, run
from ballot.gateway.settings import DEFAULT_HOST, DEFAULT_PORT, Target


def gateway(
    endpoint: EndpointName = None,
    url: Url = None,
    chat_endpoint: Annotated[
        str | None,
        typer.Option("--chat-endpoint", metavar="NAME", help="The SageMaker endpoint for chat."),
    ] = None,
    chat_url: Annotated[
        str | None,
        typer.Option("--chat-url", metavar="URL", help="The server for chat, instead."),
    ] = None,
    region: Region = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="The address to listen on.")
    ] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="The port; 0 takes a free one.")
    ] = DEFAULT_PORT,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            envvar="BALLOT_GATEWAY_KEY",
            show_envvar=False,
            help="What callers must send; better in BALLOT_GATEWAY_KEY.",
        ),
    ] = None,
) -> None:
    """Serve the System One and OpenAI APIs, and a playground.

    \b
    ballot gateway --endpoint ballot-dev-decision --chat-endpoint ballot-dev-chat
    ballot gateway --url http://127.0.0.1:8080

    Callers need no AWS credentials: requests go out with yours. So it listens on
    this machine alone unless told otherwise, and then it wants a key.
    """
    _check_one("--endpoint", endpoint, "--url", url)
    _check_one("--chat-endpoint", chat_endpoint, "--chat-url", chat_url)
    try:
        run(
            GatewaySettings(
                decisions=_target(endpoint, url, region),
                chat=_target(chat_endpoint, chat_url, region),
                host=host,
                port=port,
                key=key or None,
            )
        )
    except StartupError as error:
        raise Unusable(str(error), advice="see `ballot gateway --help`") from error


def _check_one(first: str, name: str | None, second: str, url: str | None) -> None:
    if name and url:
        raise Unusable(f"give one of {first} and {second}", advice="see `ballot gateway --help`")


def _target(name: str | None, url: str | None, region: str | None) -> Target | None:
    if name:
        return SageMakerTarget(name, region)
    return UrlTarget(url) if url else None
