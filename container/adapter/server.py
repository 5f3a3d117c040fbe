"""Routes: the only module that touches Starlette. What a route does lives elsewhere."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from adapter import json_lines, native, openapi, systemone
from adapter.admission import Admission, Permit
from adapter.body import read_body
from adapter.decision import Json
from adapter.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestError,
    SlowBody,
    UnsupportedMediaType,
)
from adapter.faults import told
from adapter.json_lines import Lines
from adapter.lifecycle import Lifecycle
from adapter.logs import log
from adapter.metrics import CONTENT_TYPE, Metrics
from adapter.pipeline import Asked, Pipeline, Recognize
from adapter.settings import Settings
from adapter.transform import execution_parameters
from adapter.wire import WireFormat
from adapter.worker import Loaded

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")
_ROUTES = {
    "/ping": "GET, HEAD",
    "/invocations": "POST",
    "/v1/systemone": "POST",
    "/v1/models": "GET, HEAD",
    "/metrics": "GET, HEAD",
    "/execution-parameters": "GET, HEAD",
    "/openapi.json": "GET, HEAD",
}
_SCORING_ROUTES = ("/invocations", "/v1/systemone")


class CallerGone(Exception):
    """The caller hung up: whatever is answered, nobody reads it."""


@dataclass
class Exchange:
    """A request on its way to its answer.

    `wire` is the format of an error: what the path says, until the body says more. `fields` are
    what the log is to say of it beyond what it says of all.
    """

    request: Request
    request_id: str
    wire: WireFormat
    fields: dict[str, Any] = field(default_factory=dict)


Handler: TypeAlias = Callable[[Exchange], Awaitable[Response]]
ResultT = TypeVar("ResultT")


class Adapter:
    """The application: what the routes share."""

    def __init__(
        self,
        settings: Settings,
        *,
        lifecycle: Lifecycle,
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._admission = admission
        self._metrics = metrics
        self._pipeline: Pipeline | None = None
        metrics.watch(waiting=lambda: admission.waiting, is_healthy=lambda: lifecycle.is_healthy)

    def model_loaded(self, loaded: Loaded) -> None:
        """Take requests from now on."""
        self._pipeline = Pipeline(self._settings, loaded, self._metrics)
        self._metrics.model(loaded.identity)
        self._metrics.watch_cache(loaded.cache)
        self._lifecycle.ready()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        handlers = {
            "/ping": self._ping,
            "/invocations": self._invocations,
            "/v1/systemone": self._systemone,
            "/v1/models": self._models,
            "/metrics": self._serve_metrics,
            "/execution-parameters": self._execution_parameters,
            "/openapi.json": self._openapi,
        }
        routes = [
            Route(
                path,
                self._guarded(path, handlers[path]),
                methods=["POST" if methods == "POST" else "GET"],
            )
            for path, methods in _ROUTES.items()
        ]
        for route in routes:
            # Starlette's own pattern ends in $, which also matches before a last line feed.
            route.path_regex = re.compile(re.escape(route.path) + r"\Z")
        application = Starlette(routes=routes, exception_handlers={HTTPException: self._no_route})
        application.router.redirect_slashes = False
        return application

    def _guarded(self, route: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Give `handler` its request id, its error answers, its log line and its counters."""

        async def endpoint(request: Request) -> Response:
            start = time.perf_counter()
            exchange = Exchange(request, _request_id(request), _wire_of_path(request.scope["path"]))
            outcome = "ok"
            try:
                response = await handler(exchange)
            except CallerGone:
                outcome = "caller_gone"
                response = Response(status_code=499)
            except Exception as error:
                refusal = told(error, exchange.request_id)
                outcome = refusal.code
                response = _error_response(refusal, exchange)
            for name in exchange.wire.request_id_headers:
                response.headers[name] = exchange.request_id

            def ended(outcome: str) -> None:
                seconds = time.perf_counter() - start
                self._answered(exchange, route, response.status_code, outcome, seconds)

            if isinstance(response, LinesResponse):
                response.on_end = ended
            else:
                ended(outcome)
            return response

        return endpoint

    def _answered(
        self, exchange: Exchange, route: str, status: int, outcome: str, seconds: float
    ) -> None:
        self._metrics.answered(route, outcome, seconds)
        log(
            logging.INFO if route in _SCORING_ROUTES else logging.DEBUG,
            "request",
            request_id=exchange.request_id,
            route=route,
            status=status,
            outcome=outcome,
            seconds=round(seconds, 6),
            **exchange.fields,
        )

    async def _no_route(self, request: Request, error: Exception) -> Response:
        path = request.scope["path"]
        if path in _ROUTES:
            refusal: RequestError = MethodNotAllowed(
                f"{path} takes {_ROUTES[path]}, not {request.method}", allowed=_ROUTES[path]
            )
        else:
            refusal = NotFound(f"no such route; the routes are: {', '.join(_ROUTES)}")

        async def refuse(_: Exchange) -> Response:
            raise refusal

        return await self._guarded(path if path in _ROUTES else "other", refuse)(request)

    async def _ping(self, _: Exchange) -> Response:
        status = 200 if self._lifecycle.is_healthy else 503
        return JSONResponse({"status": self._lifecycle.condition}, status_code=status)

    async def _serve_metrics(self, _: Exchange) -> Response:
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE)

    async def _openapi(self, _: Exchange) -> Response:
        return JSONResponse(openapi.document(self._require_pipeline().limits))

    async def _execution_parameters(self, _: Exchange) -> Response:
        return JSONResponse(execution_parameters(self._settings))

    async def _models(self, _: Exchange) -> Response:
        loaded = self._require_pipeline().loaded
        return JSONResponse(systemone.list_models(loaded.identity, released=loaded.released))

    async def _invocations(self, exchange: Exchange) -> Response:
        if _media_type(exchange.request) in json_lines.MEDIA_TYPES:
            return await self._answer_lines(exchange)
        return await self._answer(exchange, _wire_of_body)

    async def _systemone(self, exchange: Exchange) -> Response:
        return await self._answer(exchange, lambda _: systemone.WIRE)

    async def _answer(self, exchange: Exchange, recognize: Recognize) -> Response:
        """Score what the body asks, in the wire format that `recognize` finds it to be in."""
        started = time.perf_counter()
        with self._admission.enter() as permit:
            pipeline = self._require_pipeline()
            _check_is_json(exchange.request)
            async with permit.arriving():
                body = await self._read(exchange.request)
            asked = Asked(body, recognize, exchange.wire, started)
            try:
                prepared = await pipeline.prepare(asked, permit)
            finally:
                exchange.wire = asked.wire
            answered = await _unless_caller_gone(exchange.request, pipeline.score(prepared, permit))
            exchange.fields = answered.usage.as_fields()
            return JSONResponse(answered.body)

    async def _answer_lines(self, exchange: Exchange) -> Response:
        """Answer each line of the body; the permit is given back when the last one is sent."""
        with ExitStack() as held:
            permit = held.enter_context(self._admission.enter())
            pipeline = self._require_pipeline()
            _check_http_version(exchange.request)
            async with permit.arriving():
                body = await self._read(exchange.request)
            lines = Lines(
                body,
                pipeline=pipeline,
                permit=permit,
                recognize=_wire_of_body,
                request_id=exchange.request_id,
                observer=self._metrics,
                ahead=max(json_lines.AHEAD, self._settings.lanes),
            )
            return LinesResponse(lines, exchange, permit, held.pop_all())

    async def _read(self, request: Request) -> bytes:
        return await read_body(
            _body_chunks(request),
            content_length=request.headers.get("content-length"),
            encoding=_content_encoding(request),
            max_bytes=self._settings.max_body_bytes,
            timeout_seconds=self._settings.body_timeout_seconds,
        )

    def _require_pipeline(self) -> Pipeline:
        if self._pipeline is None:
            self._lifecycle.require_ready()
            raise RuntimeError("ready without a model: a bug")
        return self._pipeline


class LinesResponse(Response):
    """Sends the answers of a request of JSON Lines as they come, until its caller hangs up.

    An answer that ends has a line for every line: what cannot be sent to its end is broken off,
    which HTTP/1.1 tells apart. `held` is given back at the end, and `on_end` told the outcome.
    """

    media_type = json_lines.MEDIA_TYPE
    on_end: Callable[[str], None]

    def __init__(self, lines: Lines, exchange: Exchange, permit: Permit, held: ExitStack) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers()
        self._lines = lines
        self._exchange = exchange
        self._permit = permit
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        # What stops it from outside is the end of the process.
        outcome = "draining"
        try:
            with self._held:
                await _unless_caller_gone(self._exchange.request, self._stream(send))
            outcome = "ok"
        except CallerGone:
            outcome = "caller_gone"
        except Exception as error:
            outcome = told(error, self._exchange.request_id).code
        finally:
            counted = {"lines": self._lines.lines, "failed_lines": self._lines.failed}
            self._exchange.fields = {**counted, **self._lines.usage.as_fields()}
            self.on_end(outcome)

    async def _stream(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self._lines.answers()) as answers:
            async for line in answers:
                async with self._permit.sending():
                    await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _wire_of_path(path: str) -> WireFormat:
    return systemone.WIRE if path.startswith("/v1/") else native.WIRE


def _wire_of_body(body: Json) -> WireFormat:
    """Tell the wire formats of `/invocations` apart by their keys."""
    if not isinstance(body, dict) or systemone.KEY not in body:
        return native.WIRE
    if "decision" in body or "decisions" in body:
        raise InvalidRequest(
            "give decision, decisions or questions: one of them", code="ambiguous_request"
        )
    return systemone.WIRE


async def _unless_caller_gone(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Do `work`, and stop it as soon as the caller hangs up."""
    working = asyncio.ensure_future(work)
    hangup = asyncio.ensure_future(_hangup(request))
    try:
        await asyncio.wait({working, hangup}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CallerGone
        return working.result()
    finally:
        hangup.cancel()
        working.cancel()


async def _hangup(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body_chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise CallerGone from None


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_is_json(request: Request) -> None:
    media_type = _media_type(request)
    if media_type != "application/json":
        raise UnsupportedMediaType(
            f"content type {media_type[:80]!r} is not read here; send application/json, or "
            f"{json_lines.MEDIA_TYPE} to /invocations"
        )


def _check_http_version(request: Request) -> None:
    # There, the end of the connection is the end of an answer without a length, also of half of it.
    if request.scope["http_version"] == "1.0":
        raise InvalidRequest(
            "JSON Lines are answered over HTTP/1.1 alone, which tells a whole answer from one "
            "that broke off; behind nginx, set proxy_http_version 1.1",
            code="http_version",
        )


def _content_encoding(request: Request) -> str:
    # A repeated header means the same as one with commas: several encodings, which are refused.
    return ", ".join(request.headers.getlist("content-encoding") or ["identity"]).strip().lower()


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _error_response(error: RequestError, exchange: Exchange) -> Response:
    headers = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allowed
    if isinstance(error, SlowBody):
        headers["connection"] = "close"
    answer = exchange.wire.render_error(error, exchange.request_id)
    return JSONResponse(answer.body, status_code=answer.status, headers=headers)
