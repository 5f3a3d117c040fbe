"""Routes: the only module that touches Starlette. What a route does lives elsewhere."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapter import native, openapi, strict_json, systemone
from adapter.admission import Admission, Answer, Permit
from adapter.body import read_body
from adapter.decision import Json, Scoring
from adapter.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestError,
    ScoringError,
    ScoringFailed,
    SlowBody,
    UnsupportedMediaType,
)
from adapter.lifecycle import Lifecycle
from adapter.logs import log, origin
from adapter.metrics import CONTENT_TYPE, Metrics
from adapter.scorer import Scored, combine_orders
from adapter.settings import Settings
from adapter.tokens import Encoded
from adapter.wire import Limits, ParsedRequest, RequestTiming, Terms, WireFormat
from adapter.worker import Loaded

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")
_ROUTES = {
    "/ping": "GET, HEAD",
    "/invocations": "POST",
    "/v1/systemone": "POST",
    "/v1/models": "GET, HEAD",
    "/metrics": "GET, HEAD",
    "/openapi.json": "GET, HEAD",
}
_SCORING_ROUTES = ("/invocations", "/v1/systemone")


class CallerGone(Exception):
    """The caller hung up: whatever is answered, nobody reads it."""


@dataclass
class Exchange:
    """A request on its way to its answer.

    `wire` is the format of an error: what the path says, until the body says more.
    """

    request: Request
    request_id: str
    wire: WireFormat


Handler: TypeAlias = Callable[[Exchange], Awaitable[Response]]


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
        self._loaded: Loaded | None = None
        metrics.watch(waiting=lambda: admission.waiting, is_healthy=lambda: lifecycle.is_healthy)

    def model_loaded(self, loaded: Loaded) -> None:
        """Take requests from now on."""
        self._loaded = loaded
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
            request_id = exchange.request_id
            outcome = "ok"
            try:
                response = await handler(exchange)
            except CallerGone:
                outcome = "caller_gone"
                response = Response(status_code=499)
            except RequestError as error:
                outcome = error.code
                response = _error_response(error, exchange)
                if isinstance(error, ScoringFailed):
                    log(logging.ERROR, "scoring_failed", request_id=request_id, cause=_cause(error))
            except Exception as error:
                log(logging.ERROR, "bug", request_id=request_id, cause=origin(error))
                fault = ScoringFailed("the adapter failed on this request", code="internal_error")
                outcome = fault.code
                response = _error_response(fault, exchange)
            seconds = time.perf_counter() - start
            for name in exchange.wire.request_id_headers:
                response.headers[name] = request_id
            self._metrics.answered(route, outcome, seconds)
            log(
                logging.INFO if route in _SCORING_ROUTES else logging.DEBUG,
                "request",
                request_id=request_id,
                route=route,
                status=response.status_code,
                outcome=outcome,
                seconds=round(seconds, 6),
            )
            return response

        return endpoint

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
        return JSONResponse(openapi.document(self._limits(self._require_loaded())))

    async def _models(self, _: Exchange) -> Response:
        loaded = self._require_loaded()
        return JSONResponse(systemone.list_models(loaded.identity, released=loaded.released))

    async def _invocations(self, exchange: Exchange) -> Response:
        return await self._answer(exchange, _wire_of_body)

    async def _systemone(self, exchange: Exchange) -> Response:
        return await self._answer(exchange, lambda _: systemone.WIRE)

    async def _answer(
        self, exchange: Exchange, recognize: Callable[[Json], WireFormat]
    ) -> Response:
        """Score what the body asks, in the wire format that `recognize` finds it to be in."""
        start = time.perf_counter()
        with self._admission.enter() as permit:
            loaded = self._require_loaded()
            body = await self._read(exchange.request)
            parsed, encoded = await asyncio.to_thread(
                self._prepare, exchange, body, recognize, loaded
            )
            answer = await _unless_caller_gone(exchange.request, permit, encoded)
            timing = RequestTiming(
                queue_seconds=answer.queue_seconds,
                forward_seconds=answer.forward_seconds,
                total_seconds=time.perf_counter() - start,
            )
            scored = _calibrated(
                combine_orders(answer.scored, parsed.scoring.orders), parsed, loaded
            )
            return JSONResponse(parsed.render(scored, model=loaded.identity, timing=timing))

    async def _read(self, request: Request) -> bytes:
        _check_content_type(request.headers.get("content-type", ""))
        return await read_body(
            _body_chunks(request),
            content_length=request.headers.get("content-length"),
            encoding=_content_encoding(request),
            max_bytes=self._settings.max_body_bytes,
            timeout_seconds=self._settings.body_timeout_seconds,
        )

    def _prepare(
        self,
        exchange: Exchange,
        body: bytes,
        recognize: Callable[[Json], WireFormat],
        loaded: Loaded,
    ) -> tuple[ParsedRequest, tuple[Encoded, ...]]:
        value = strict_json.parse(body)
        exchange.wire = recognize(value)
        parsed = exchange.wire.parse(value, self._terms(loaded))
        return parsed, tuple(
            encoded
            for index, decision in enumerate(parsed.decisions)
            for encoded in loaded.encoder.encode_orders(
                decision, parsed.scoring, field=parsed.path(index)
            )
        )

    def _terms(self, loaded: Loaded) -> Terms:
        return Terms(
            limits=self._limits(loaded),
            scoring=Scoring(layout=self._settings.layout, orders=self._settings.orders),
            model=loaded.identity,
            model_aliases=self._settings.model_aliases,
        )

    def _limits(self, loaded: Loaded) -> Limits:
        return Limits(decisions=self._settings.max_decisions, options=loaded.encoder.max_options)

    def _require_loaded(self) -> Loaded:
        if self._loaded is None:
            self._lifecycle.require_ready()
            raise RuntimeError("ready without a model: a bug")
        return self._loaded


def _calibrated(
    scored: tuple[Scored, ...], parsed: ParsedRequest, loaded: Loaded
) -> tuple[Scored, ...]:
    calibration = loaded.calibration
    if calibration is None:
        return scored
    return tuple(
        calibration.apply(score, kind=decision.kind, scoring=parsed.scoring)
        for score, decision in zip(scored, parsed.decisions, strict=True)
    )


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


async def _unless_caller_gone(
    request: Request, permit: Permit, encoded: tuple[Encoded, ...]
) -> Answer:
    """Score `encoded`, and stop as soon as the caller hangs up."""
    scoring = asyncio.ensure_future(permit.score(encoded))
    hangup = asyncio.ensure_future(_hangup(request))
    try:
        await asyncio.wait({scoring, hangup}, return_when=asyncio.FIRST_COMPLETED)
        if not scoring.done():
            raise CallerGone
        return scoring.result()
    finally:
        hangup.cancel()
        scoring.cancel()


async def _hangup(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body_chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise CallerGone from None


def _check_content_type(content_type: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType(
            f"content type {media_type[:80]!r} is not read here; send application/json"
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


def _cause(error: BaseException) -> str:
    """Return why a scoring failed; what is not said by this package may quote the prompt."""
    cause = error.__cause__ or error
    return repr(cause) if isinstance(cause, ScoringError) else origin(cause)
