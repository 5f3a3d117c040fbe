"""`ballot chat`: says something to a chat endpoint, and prints what it answers as it comes."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ballot.client import Ballot
from ballot.commands.explain import Unusable
from ballot.commands.options import (
    DEFAULT_TIMEOUT,
    EndpointName,
    Key,
    Region,
    Target,
    Timeout,
    Url,
)
from ballot.commands.request_file import STDIN, read_text
from ballot.commands.screen import printable


def chat(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What to say; - reads standard input.")
    ],
    endpoint: EndpointName = None,
    url: Url = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="The system message.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", metavar="N", min=1, help="The longest answer, in tokens."),
    ] = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print the answer once it is whole.")
    ] = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    region: Region = None,
    key: Key = None,
) -> None:
    """Say something to a chat endpoint.

    \b
    ballot chat "Name three primary colours." --endpoint ballot-dev-chat
    ballot chat - --endpoint ballot-dev-chat < letter.txt
    """
    target = Target(endpoint_name=endpoint, url=url, region=region, key=key)
    messages = _messages(read_text(STDIN) if text == STDIN else text, system)
    options: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    with target.connect(timeout_seconds=timeout) as client:
        _answer(client, messages, options, stream=not no_stream)


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    if not text.strip():
        raise Unusable("there is nothing to say", advice="give a text, or - and standard input")
    said = [{"role": "system", "content": system}] if system else []
    return [*said, {"role": "user", "content": text}]


def _answer(
    client: Ballot, messages: list[dict[str, str]], options: dict[str, Any], *, stream: bool
) -> None:
    """Write the answer as its pieces come, and end its last line."""
    pieces = (
        client.chat_stream(messages, **options)
        if stream
        else iter([client.chat(messages, **options).text])
    )
    written = ""
    try:
        for written in filter(None, pieces):
            sys.stdout.write(_shown(written))
            sys.stdout.flush()
    finally:
        if written and not written.endswith("\n"):
            sys.stdout.write("\n")


def _shown(text: str) -> str:
    """Return what a model wrote, so that it cannot steer the terminal it is written to."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text
