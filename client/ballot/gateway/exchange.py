"""One request and its answer: ids, error answers, clean-up and the line in the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ballot.gateway.errors import CallerGone, GatewayError
from ballot.gateway.logs import log, origin
from ballot.gateway.protocols import Protocol

CALLER_GONE = "caller_gone"
_CALLER_GONE_STATUS = 499
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")
Result = TypeVar("Result")


@dataclass
class Exchange:
    """A request, and what the log is told about it.

    `cleanup` holds what ends with the exchange: after the answer is sent, or the caller is gone.
    """

    request: Request
    route: str
    cleanup: contextlib.AsyncExitStack
    request_id: str = ""
    endpoint_request_id: str | None = None
    upstream: str | None = None
    is_shared: bool = False
    outcome: str = "ok"
    start: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        given = self.request.headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

    async def unless_caller_gone(self, work: Awaitable[Result]) -> Result:
        """Return what `work` does; cancel it as soon as the caller hangs up.

        Raises:
            CallerGone: the caller did.
        """
        working = asyncio.ensure_future(work)
        hangup = asyncio.ensure_future(self._hangup())
        try:
            await asyncio.wait({working, hangup}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise CallerGone
            return working.result()
        finally:
            hangup.cancel()
            working.cancel()
            await asyncio.wait({working, hangup})

    async def _hangup(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    def write(self, status: int) -> None:
        """Log the request."""
        log(
            logging.INFO,
            "request",
            request_id=self.request_id,
            endpoint_request_id=self.endpoint_request_id,
            route=self.route,
            status=status,
            outcome=self.outcome,
            seconds=round(time.perf_counter() - self.start, 6),
            upstream=self.upstream,
            shared=self.is_shared,
        )


Handler = Callable[[Exchange], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """An ASGI application for one route: whatever its handler does, there is an answer."""

    route: str
    protocol: Protocol
    handler: Handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        async with contextlib.AsyncExitStack() as cleanup:
            exchange = Exchange(Request(scope, receive, send), self.route, cleanup)
            response = await self._respond(exchange)
            shown_id = exchange.endpoint_request_id or exchange.request_id
            response.headers["x-request-id"] = shown_id
            response.headers["x-typesafe-request-id"] = shown_id
            response.headers["x-content-type-options"] = "nosniff"
            response.headers.setdefault("cache-control", "no-store")
            try:
                await response(scope, receive, send)
            finally:
                exchange.write(response.status_code)

    async def _respond(self, exchange: Exchange) -> Response:
        try:
            return await self.handler(exchange)
        except CallerGone:
            exchange.outcome = CALLER_GONE
            return Response(status_code=_CALLER_GONE_STATUS)
        except GatewayError as error:
            return self._refuse(exchange, error)
        except Exception as error:
            log(logging.ERROR, "bug", request_id=exchange.request_id, cause=origin(error))
            return self._refuse(exchange, GatewayError("the gateway failed on this request"))

    def _refuse(self, exchange: Exchange, error: GatewayError) -> Response:
        answer = self.protocol.render(error, exchange.request_id)
        exchange.outcome = error.code
        exchange.endpoint_request_id = answer.request_id
        return Response(
            answer.body,
            status_code=answer.status,
            headers=error.headers,
            media_type="application/json",
        )
