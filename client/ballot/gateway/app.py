"""Routes: what comes in by which protocol, where it goes, and how it comes back."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ballot.gateway.auth import Guard
from ballot.gateway.bodies import read_json_body
from ballot.gateway.coalesce import Calls
from ballot.gateway.errors import (
    Busy,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
)
from ballot.gateway.exchange import CALLER_GONE, Endpoint, Exchange, Handler
from ballot.gateway.models import Models
from ballot.gateway.page import page_files
from ballot.gateway.protocols import Native, OpenAI, Protocol, SystemOne
from ballot.gateway.settings import GatewaySettings
from ballot.gateway.sse import error_event, whole_events
from ballot.gateway.upstream import Upstream


def create_app(settings: GatewaySettings) -> Starlette:
    """Return the ASGI application; its connections close when it shuts down."""
    return Gateway(settings).application()


@dataclass(frozen=True)
class _Service:
    """A route of the API."""

    method: str
    protocol: Protocol
    handler: Handler


class Gateway:
    """What the routes share."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._decisions = Upstream.of(settings.decisions, settings)
        self._chat = Upstream.of(settings.chat, settings)
        self._guard = Guard(
            key=settings.key, loopback_host=settings.host if settings.is_loopback else None
        )
        self._calls: Calls[bytes] = Calls(settings.max_calls)
        self._models = Models(decisions=self._decisions, chat=self._chat, calls=self._calls)
        self._open_requests = 0
        self._pages: dict[str, Callable[[Request], Response]] = {
            "/healthz": self._healthz,
            **{path: file.respond for path, file in page_files().items()},
        }
        self._services = {
            "/invocations": _Service("POST", Native(), self._invocations),
            "/v1/systemone": _Service("POST", SystemOne(), self._systemone),
            "/v1/models": _Service("GET", SystemOne(), self._list_models),
            "/v1/chat/completions": _Service("POST", OpenAI(), self._chat_completions),
        }

    def application(self) -> Starlette:
        """Return the ASGI application."""
        endpoints = {
            **{path: self._guarded(path, service) for path, service in self._services.items()},
            **{path: self._unlocked(path, respond) for path, respond in self._pages.items()},
        }
        routes = [Route(path, endpoint) for path, endpoint in endpoints.items()]
        for route in routes:
            # Starlette's own pattern ends in $, which also matches before a last line feed.
            route.path_regex = re.compile(re.escape(route.path) + r"\Z")
        application = Starlette(routes=routes, lifespan=self._lifespan)
        application.router.redirect_slashes = False
        application.router.default = Endpoint("other", Native(), self._no_route)
        return application

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        for upstream in (self._decisions, self._chat):
            if upstream is not None:
                await upstream.close()

    def _guarded(self, path: str, service: _Service) -> Endpoint:
        """Return what answers a route that needs the key, where there is one."""

        async def handler(exchange: Exchange) -> Response:
            self._check_site(exchange.request)
            self._guard.check_fetch(exchange.request.headers)
            _check_method(exchange.request, (service.method,))
            self._guard.check_key(exchange.request.headers)
            exchange.cleanup.enter_context(self._admitted())
            return await service.handler(exchange)

        return Endpoint(path, service.protocol, handler)

    def _unlocked(self, path: str, respond: Callable[[Request], Response]) -> Endpoint:
        """Return what answers a route that needs no key."""

        async def handler(exchange: Exchange) -> Response:
            self._check_site(exchange.request)
            _check_method(exchange.request, ("GET", "HEAD"))
            return respond(exchange.request)

        return Endpoint(path, Native(), handler)

    async def _no_route(self, exchange: Exchange) -> Response:
        self._check_site(exchange.request)
        raise NotFound(f"no such route; the routes are: {', '.join(self._services)}")

    def _check_site(self, request: Request) -> None:
        self._guard.check_site(request.headers, method=request.method)

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._open_requests >= self._settings.max_requests:
            raise Busy(f"{self._open_requests} requests are open, which is the limit")
        self._open_requests += 1
        try:
            yield
        finally:
            self._open_requests -= 1

    def _healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "key_required": self._settings.key is not None})

    async def _list_models(self, exchange: Exchange) -> Response:
        return JSONResponse(await exchange.unless_caller_gone(self._models.list()))

    async def _invocations(self, exchange: Exchange) -> Response:
        upstream = _required(self._decisions, "--endpoint or --url")
        return await self._share(exchange, upstream, await self._read(exchange), Native())

    async def _systemone(self, exchange: Exchange) -> Response:
        upstream = _required(self._decisions, "--endpoint or --url")
        body = await self._read(exchange)
        # Behind /invocations the endpoint tells System One from its own schema by this key.
        if "questions" not in _json_object(body):
            raise InvalidRequest("this field is missing", code="missing_field", field="questions")
        return await self._share(exchange, upstream, body, SystemOne())

    async def _chat_completions(self, exchange: Exchange) -> Response:
        upstream = _required(self._chat, "--chat-endpoint or --chat-url")
        body = await self._read(exchange)
        streams = _json_object(body).get("stream")
        if streams is True:
            return await self._stream(exchange, upstream, body)
        if streams not in (False, None):
            raise InvalidRequest("stream must be true or false", code="wrong_type", field="stream")
        # A chat is drawn by chance: whoever asks the same twice at once wants two answers.
        return await self._share(exchange, upstream, body, OpenAI(), only_left=True)

    async def _read(self, exchange: Exchange) -> bytes:
        return await read_json_body(
            exchange.request,
            max_bytes=self._settings.max_body_bytes,
            timeout_seconds=self._settings.body_timeout_seconds,
        )

    async def _share(
        self,
        exchange: Exchange,
        upstream: Upstream,
        body: bytes,
        protocol: Protocol,
        *,
        only_left: bool = False,
    ) -> Response:
        """Answer with what one call to the endpoint says to all who ask the same now.

        With `only_left`, to those who ask again after they hung up.
        """
        path = exchange.route
        key = path.encode() + hashlib.sha256(body).digest()
        exchange.upstream = upstream.name
        answer, exchange.is_shared = await exchange.unless_caller_gone(
            self._calls.share(key, lambda: upstream.send(path, body, protocol), only_left=only_left)
        )
        return Response(answer, media_type="application/json")

    async def _stream(self, exchange: Exchange, upstream: Upstream, body: bytes) -> Response:
        """Answer with events as they come, once there is a first one."""
        exchange.upstream = upstream.name

        async def begin() -> tuple[bytes, AsyncIterator[bytes]]:
            await exchange.cleanup.enter_async_context(self._calls.slot)
            pieces = await exchange.cleanup.enter_async_context(
                upstream.stream(exchange.route, body)
            )
            events = whole_events(pieces)
            exchange.cleanup.push_async_callback(events.aclose)
            return await anext(events), events

        first, rest = await exchange.unless_caller_gone(begin())
        return StreamingResponse(
            _events(exchange, first, rest),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )


async def _events(
    exchange: Exchange, first: bytes, rest: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Yield the events, and an error as the last where they do not end well."""
    exchange.outcome = CALLER_GONE
    try:
        yield first
        async for event in rest:
            yield event
        exchange.outcome = "ok"
    except GatewayError as error:
        exchange.outcome = error.code
        yield error_event(OpenAI().render(error, exchange.request_id).body)


def _check_method(request: Request, allowed: tuple[str, ...]) -> None:
    if request.method not in allowed:
        names = ", ".join(allowed)
        raise MethodNotAllowed(
            f"{request.scope['path']} takes {names}, not {request.method}", allowed=names
        )


def _required(upstream: Upstream | None, options: str) -> Upstream:
    if upstream is None:
        raise NotFound(f"this gateway has no endpoint for that: start it with {options}")
    return upstream


def _json_object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body.decode("utf-8"))
    except RecursionError:
        raise InvalidRequest("the body nests too deep", code="too_deep") from None
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8", code="invalid_encoding") from None
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}"[:200]) from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be an object", code="wrong_type")
    return value
