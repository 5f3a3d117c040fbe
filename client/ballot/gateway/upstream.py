"""The endpoints behind the gateway: what they answer, and what keeps them from answering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

from ballot.errors import (
    AccessDenied,
    BallotError,
    EndpointNotFound,
    TransportFailed,
    Unavailable,
)
from ballot.gateway.errors import (
    Busy,
    GatewayError,
    Misconfigured,
    StartupError,
    Throttled,
    UpstreamFailed,
    UpstreamTimeout,
)
from ballot.gateway.logs import log
from ballot.gateway.protocols import Protocol, endpoint_error, parse
from ballot.gateway.settings import GatewaySettings, SageMakerTarget, Target
from ballot.transport import (
    AsyncHttpTransport,
    AsyncSageMakerTransport,
    AsyncStream,
    AsyncTransport,
    Reply,
)


class Upstream:
    """An endpoint; `name` is how the gateway's log and its list of models call it."""

    def __init__(self, name: str, transport: AsyncTransport, *, timeout_seconds: float) -> None:
        self.name = name
        self._transport = transport
        self._timeout_seconds = timeout_seconds

    @classmethod
    def of(cls, target: Target | None, settings: GatewaySettings) -> Upstream | None:
        """Return the upstream that a target names, if there is one; nothing is connected yet.

        Raises:
            StartupError: it cannot be reached by that name, or through the environment's proxy.
        """
        if target is None:
            return None
        name = target.endpoint_name if isinstance(target, SageMakerTarget) else target.shown
        try:
            transport = _transport_to(target)
        except BallotError as error:
            raise StartupError(error.message) from error
        return cls(name, transport, timeout_seconds=settings.call_timeout_seconds)

    async def send(self, path: str, body: bytes, protocol: Protocol) -> bytes:
        """Return the body of a successful answer.

        Raises:
            GatewayError: there is no answer, or none of `protocol`; `EndpointError` where the
                container answered an error.
        """
        with self._faults():
            reply = await self._transport.send(path, body, timeout=self._timeout_seconds)
        self._check_status(reply)
        if not protocol.is_answer(reply.body):
            raise UpstreamFailed(
                "the endpoint's answer is cut off, or not of this protocol",
                code="bad_endpoint_answer",
            )
        return reply.body

    @asynccontextmanager
    async def stream(self, path: str, body: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        """Give the pieces of a successful answer as they come; leaving hangs up.

        Raises:
            GatewayError: as for `send`.
        """
        with self._faults():
            opened = await self._open(path, body)
        if isinstance(opened, Reply):
            self._check_status(opened)
            raise UpstreamFailed("the endpoint does not stream", code="bad_endpoint_answer")
        try:
            async with aclosing(self._pieces(opened.chunks)) as pieces:
                yield pieces
        finally:
            await opened.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _open(self, path: str, body: bytes) -> Reply | AsyncStream:
        """Open a stream; where nothing stops the opening, leaving waits for it and closes it."""
        opening = self._transport.stream(path, body, timeout=self._timeout_seconds)
        if not isinstance(self._transport, AsyncSageMakerTransport):
            return await opening
        working = asyncio.ensure_future(opening)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait({working})
            if working.exception() is None and isinstance(late := working.result(), AsyncStream):
                await late.close()
            raise

    async def _pieces(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        with self._faults():
            async for chunk in chunks:
                yield chunk

    def _check_status(self, reply: Reply) -> None:
        if 200 <= reply.status < 300:
            return
        if reply.status < 400:
            raise UpstreamFailed(
                f"the endpoint answered {reply.status}, which is no answer",
                code="bad_endpoint_answer",
            )
        if reply.status in (401, 403, 407):
            # Said to a caller, it would mean the caller's own key.
            raise Misconfigured(f"the endpoint refused the gateway with status {reply.status}")
        if reply.status == 504 and parse(reply.body) is None:
            raise UpstreamTimeout("the endpoint did not answer in time")
        retry_after = reply.headers.get("retry-after")
        raise endpoint_error(reply.status, reply.body, retry_after=retry_after)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except BallotError as error:
            # What AWS says names accounts and roles: that is for the log, not for callers.
            log(logging.ERROR, "endpoint_fault", upstream=self.name, cause=error.message)
            raise _gateway_error(error) from error


def _transport_to(target: Target) -> AsyncTransport:
    if isinstance(target, SageMakerTarget):
        return AsyncSageMakerTransport(target.endpoint_name, region=target.region)
    return AsyncHttpTransport(target.url)


def _gateway_error(error: BallotError) -> GatewayError:
    """Return what a caller is told about a call that got no answer of the endpoint's."""
    if isinstance(error, TransportFailed):
        if error.code == "timed_out":
            return UpstreamTimeout("the endpoint did not answer in time")
        return UpstreamFailed("the connection to the endpoint failed, or broke")
    if isinstance(error, AccessDenied):
        return Misconfigured(
            f"AWS refused the gateway's credentials ({error.code}); its log says why"
        )
    if isinstance(error, EndpointNotFound):
        return Misconfigured(
            "the gateway's endpoint is not in service in its account and Region",
            code="endpoint_not_found",
        )
    if isinstance(error, Unavailable):
        if error.status is not None and error.status >= 500:
            return Busy(f"SageMaker cannot serve now ({error.code})", code="endpoint_unavailable")
        return Throttled(f"SageMaker takes no more requests now ({error.code})")
    return Misconfigured(
        f"SageMaker refused the request ({error.code}); the gateway's log says why",
        code="endpoint_refused",
    )
