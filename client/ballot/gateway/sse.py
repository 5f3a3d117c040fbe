"""Server-sent events of a streamed chat: cut into whole ones, and checked to end as they should."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator

from ballot.gateway.errors import UpstreamFailed

_END_OF_EVENT = re.compile(rb"\r?\n\r?\n")
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_DONE = re.compile(rb"^data: ?\[DONE\]\r?$", re.M)
MAX_EVENT_BYTES = 1 << 20
_BAD = "bad_endpoint_answer"


async def whole_events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the events that `pieces` make up, up to `data: [DONE]`.

    Raises:
        UpstreamFailed: they are no events, one is too large, or they end before that.
    """
    rest = b""
    async for piece in pieces:
        *events, rest = _END_OF_EVENT.split(rest + piece)
        for event in events:
            if not event:
                continue
            _check_event(event)
            yield event + b"\n\n"
            if _DONE.search(event):
                return
        _check_size(rest)
    raise UpstreamFailed("the endpoint broke off its stream", code=_BAD)


def error_event(error: bytes) -> bytes:
    """Return the event whose JSON OpenAI's SDKs raise as an error in the middle of a stream."""
    return b"data: " + error + b"\n\n"


def _check_event(event: bytes) -> None:
    _check_size(event)
    if not event.lstrip(b"\r\n").startswith(_FIELDS):
        raise UpstreamFailed("the endpoint did not answer with a stream of events", code=_BAD)


def _check_size(event: bytes) -> None:
    if len(event) > MAX_EVENT_BYTES:
        raise UpstreamFailed("an event of the endpoint's stream is too large", code=_BAD)
