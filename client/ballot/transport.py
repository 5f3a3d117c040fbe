"""How a request reaches the endpoint: over HTTP, or through SageMaker; at once, or awaited."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import math
import re
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import boto3.session
import httpx
import urllib3.exceptions
from botocore.config import Config
from botocore.eventstream import ParserError
from botocore.exceptions import BotoCoreError, ClientError

from ballot.aws_errors import CREDENTIAL_CODES, error_from_botocore
from ballot.errors import AccessDenied, InvalidRequest, TransportFailed
from ballot.faults import connection_fault

# SageMaker gives a container 60 seconds: who waits less long gives up on answers that do come.
ATTEMPT_SECONDS = 70.0
CONNECT_SECONDS = 5.0
MAX_CONNECTIONS = 32
JSON, JSON_LINES = "application/json", "application/jsonlines"
Value = TypeVar("Value")


@dataclass(frozen=True)
class Reply:
    """A whole answer of the endpoint, whatever its status; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Stream:
    """A successful answer that comes in pieces: read `chunks` to their end, or call `close`."""

    headers: Mapping[str, str]
    chunks: Iterator[bytes]
    close: Callable[[], None]


@dataclass(frozen=True)
class AsyncStream:
    """A successful answer that comes in pieces: read `chunks` to their end, or await `close`."""

    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]


class Transport(Protocol):
    """Sends a JSON body to a path of the endpoint, once.

    `timeout` is in seconds and bounds connecting and each wait for bytes; it is never more than
    `ATTEMPT_SECONDS`. Every answer of the endpoint is returned, of whatever status; what keeps
    one from coming is raised.

    Raises:
        TransportFailed: the connection failed, broke, or stayed silent.
        AccessDenied, EndpointNotFound, Unavailable, InvalidRequest: AWS refused the request.
    """

    def send(self, path: str, body: bytes, *, timeout: float) -> Reply:
        """Return the whole answer."""

    def stream(self, path: str, body: bytes, *, timeout: float) -> Reply | Stream:
        """Return the answer as it comes; one that is no success comes whole."""

    def close(self) -> None:
        """Close the connections."""


class AsyncTransport(Protocol):
    """What `Transport` is, awaited."""

    async def send(self, path: str, body: bytes, *, timeout: float) -> Reply:
        """Return the whole answer."""

    async def stream(self, path: str, body: bytes, *, timeout: float) -> Reply | AsyncStream:
        """Return the answer as it comes; one that is no success comes whole."""

    async def close(self) -> None:
        """Close the connections."""


class HttpTransport:
    """HTTP to an adapter, a gateway, or any server of the same routes; `key` is a bearer key.

    The environment's proxy is used, but never to reach this machine: it would be shown the key.
    `content_type` is of the bodies that are sent.

    Raises:
        InvalidRequest: `url` is no URL, `key` no key, or httpx cannot use the proxy.
    """

    def __init__(self, url: str, *, key: str | None = None, content_type: str = JSON) -> None:
        self._url = _base_url(url)
        headers = {**_http_headers(key), "content-type": content_type}
        with _proxy_faults():
            self._client = httpx.Client(headers=headers, limits=_POOL, **_network(self._url))

    def send(self, path: str, body: bytes, *, timeout: float) -> Reply:
        """Return the whole answer, or fail once `timeout` has passed, however slowly it comes."""
        deadline = time.monotonic() + timeout
        with (
            _http_faults(),
            self._client.stream(
                "POST", self._url + path, content=body, timeout=_limits(timeout)
            ) as response,
        ):
            content = b"".join(_until(deadline, response.iter_bytes()))
            return Reply(response.status_code, dict(response.headers), content)

    def stream(self, path: str, body: bytes, *, timeout: float) -> Reply | Stream:
        """Return the answer as it comes; one that is no success comes whole."""
        request = self._client.build_request(
            "POST", self._url + path, content=body, timeout=_limits(timeout)
        )
        with _http_faults():
            response = self._client.send(request, stream=True)
            if not response.is_success:
                content = response.read()
                return Reply(response.status_code, dict(response.headers), content)
        return Stream(dict(response.headers), _chunks(response), response.close)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class AsyncHttpTransport:
    """What `HttpTransport` is, awaited."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        self._url = _base_url(url)
        headers = _http_headers(key)
        with _proxy_faults():
            self._client = httpx.AsyncClient(headers=headers, limits=_POOL, **_network(self._url))

    async def send(self, path: str, body: bytes, *, timeout: float) -> Reply:
        """Return the whole answer, or fail once `timeout` has passed, however slowly it comes."""
        with _http_faults():
            response = await _within(
                timeout,
                self._client.post(self._url + path, content=body, timeout=_limits(timeout)),
            )
        return Reply(response.status_code, dict(response.headers), response.content)

    async def stream(self, path: str, body: bytes, *, timeout: float) -> Reply | AsyncStream:
        """Return the answer as it comes; one that is no success comes whole."""
        request = self._client.build_request(
            "POST", self._url + path, content=body, timeout=_limits(timeout)
        )
        with _http_faults():
            response = await self._client.send(request, stream=True)
            if not response.is_success:
                content = await response.aread()
                return Reply(response.status_code, dict(response.headers), content)
        chunks = _async_chunks(response)

        async def close() -> None:
            await chunks.aclose()
            await response.aclose()

        return AsyncStream(dict(response.headers), chunks, close)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class SageMakerTransport:
    """A SageMaker endpoint, with the caller's AWS credentials.

    Only `/invocations` is reached, so paths are not sent: the container tells schemas apart by
    their keys. What the container answers, successful or not, is the answer here too; its own
    headers do not come through. `session` is a boto3 session; the default one reads the
    environment and the AWS configuration files, and does so again after credentials were refused.
    `endpoint_url` is for an emulator; `content_type` is of the bodies that are sent.
    """

    def __init__(
        self,
        endpoint_name: str,
        *,
        region: str | None = None,
        session: boto3.session.Session | None = None,
        endpoint_url: str | None = None,
        content_type: str = JSON,
    ) -> None:
        self._endpoint_name, self._region = _endpoint_name(endpoint_name), region
        self._content_type = content_type
        self._session, self._endpoint_url = session, endpoint_url
        self._owns_session = session is None
        self._clients: dict[float, Any] = {}
        self._lock = threading.Lock()

    def send(self, path: str, body: bytes, *, timeout: float) -> Reply:
        """Return the container's whole answer."""
        try:
            with self._faults():
                answer = self._client(timeout).invoke_endpoint(**self._arguments(body))
                return Reply(200, _aws_headers(answer), answer["Body"].read())
        except _ContainerError as error:
            return error.reply

    def stream(self, path: str, body: bytes, *, timeout: float) -> Reply | Stream:
        """Return the container's answer as it comes; one that is no success comes whole."""
        try:
            with self._faults():
                client = self._client(timeout)
                answer = client.invoke_endpoint_with_response_stream(**self._arguments(body))
        except _ContainerError as error:
            return error.reply
        events = answer["Body"]
        return Stream(_aws_headers(answer), _payloads(events), events.close)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Raise what `_aws_faults` does; credentials that are refused are read again."""
        try:
            with _aws_faults(), _container_errors():
                yield
        except AccessDenied as error:
            if self._owns_session and error.code in CREDENTIAL_CODES:
                with self._lock:
                    self._session = None
                self.close()
            raise

    def _arguments(self, body: bytes) -> dict[str, Any]:
        return {
            "EndpointName": self._endpoint_name,
            "ContentType": self._content_type,
            "Body": body,
        }

    def _client(self, timeout: float) -> Any:
        """Return a client with time-outs of at most `timeout`.

        botocore fixes them when it makes a client, so that one is kept for each whole number of
        seconds, and below one second for each halving of it.
        """
        seconds = _rounded_down(min(timeout, ATTEMPT_SECONDS))
        with self._lock:
            if seconds not in self._clients:
                self._clients[seconds] = self._make_client(seconds)
            return self._clients[seconds]

    def _make_client(self, seconds: float) -> Any:
        if self._session is None:
            self._session = boto3.session.Session()
        return self._session.client(
            "sagemaker-runtime",
            region_name=self._region,
            endpoint_url=self._endpoint_url,
            config=Config(
                connect_timeout=min(CONNECT_SECONDS, seconds),
                read_timeout=seconds,
                max_pool_connections=MAX_CONNECTIONS,
                retries={"total_max_attempts": 1, "mode": "standard"},
            ),
        )


class AsyncSageMakerTransport:
    """What `SageMakerTransport` is, awaited: boto3 runs in threads, of which there are 32."""

    def __init__(
        self,
        endpoint_name: str,
        *,
        region: str | None = None,
        session: boto3.session.Session | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        self._blocking = SageMakerTransport(
            endpoint_name, region=region, session=session, endpoint_url=endpoint_url
        )
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="ballot")

    async def send(self, path: str, body: bytes, *, timeout: float) -> Reply:
        """Return the container's whole answer."""
        send = functools.partial(self._blocking.send, path, body, timeout=timeout)
        return await _within(timeout, self._in_thread(send))

    async def stream(self, path: str, body: bytes, *, timeout: float) -> Reply | AsyncStream:
        """Return the container's answer as it comes; one that is no success comes whole."""
        open_stream = functools.partial(self._blocking.stream, path, body, timeout=timeout)
        opening = asyncio.ensure_future(self._in_thread(open_stream))
        try:
            opened = await _within(timeout, asyncio.shield(opening))
        except BaseException:
            # Nothing stops boto3: what it opens for nobody is closed when it comes.
            opening.add_done_callback(self._close_late)
            raise
        if isinstance(opened, Reply):
            return opened
        close = functools.partial(self._in_thread, opened.close)
        return AsyncStream(opened.headers, self._chunks(opened.chunks), close)

    async def close(self) -> None:
        """Close the connections; requests that are under way fail."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._blocking.close()

    def _close_late(self, opening: asyncio.Future[Reply | Stream]) -> None:
        failed = opening.cancelled() or opening.exception() is not None
        if not failed and isinstance(opened := opening.result(), Stream):
            opened.close()

    async def _chunks(self, chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (chunk := await self._in_thread(functools.partial(next, chunks, None))) is not None:
            yield chunk

    async def _in_thread(self, function: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


_LONGEST_NAME = 63
_POOL = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)


def _base_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{url!r} is not a URL: {error}", code="invalid_url") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequest(
            f"{url!r} is not a URL such as http://127.0.0.1:8080", code="invalid_url"
        )
    return url.rstrip("/")


def _endpoint_name(name: str) -> str:
    # The API's own rule. botocore does not check it, and would put the name into the path.
    if len(name) > _LONGEST_NAME or not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name):
        raise InvalidRequest(
            f"{name!r} is not the name of an endpoint: up to {_LONGEST_NAME} letters, digits "
            "and hyphens",
            code="invalid_endpoint_name",
        )
    return name


def _http_headers(key: str | None) -> dict[str, str]:
    headers = {"content-type": JSON}
    if key is None:
        return headers
    if not re.fullmatch(r"[!-~]+", key):
        raise InvalidRequest(
            "the key must be visible ASCII characters without white space", code="invalid_key"
        )
    return {**headers, "authorization": f"Bearer {key}"}


def _network(url: str) -> dict[str, Any]:
    """Return how httpx reaches a URL: by the environment's proxy, unless it is this machine."""
    if not _is_loopback(httpx.URL(url).host):
        return {}
    return {"trust_env": False, "verify": httpx.create_ssl_context()}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


@contextlib.contextmanager
def _proxy_faults() -> Iterator[None]:
    try:
        yield
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise InvalidRequest(
            "the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names cannot be used "
            f"({error}); name an HTTP proxy, or none",
            code="invalid_proxy",
        ) from error


def _limits(timeout: float) -> httpx.Timeout:
    seconds = min(timeout, ATTEMPT_SECONDS)
    return httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))


@contextlib.contextmanager
def _http_faults() -> Iterator[None]:
    try:
        yield
    except httpx.RequestError as error:
        timed_out = isinstance(error, httpx.TimeoutException)
        raise connection_fault(error, timed_out=timed_out) from error


def _until(deadline: float, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        if time.monotonic() > deadline:
            raise _too_slow()
        yield chunk


async def _within(timeout: float, awaitable: Awaitable[Value]) -> Value:
    try:
        return await asyncio.wait_for(awaitable, timeout)
    except asyncio.TimeoutError as error:
        raise _too_slow() from error


def _too_slow() -> TransportFailed:
    return TransportFailed("the answer did not come in time", code="timed_out", retryable=True)


def _chunks(response: httpx.Response) -> Iterator[bytes]:
    with _http_faults():
        yield from response.iter_bytes()


async def _async_chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    with _http_faults():
        async for chunk in response.aiter_bytes():
            yield chunk


def _aws_headers(answer: Mapping[str, Any]) -> dict[str, str]:
    headers: dict[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return headers


class _ContainerError(Exception):
    """The container answered, and it was no success."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply


@contextlib.contextmanager
def _container_errors() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "ModelError":
            raise
        raise _ContainerError(_container_reply(error.response)) from error


@contextlib.contextmanager
def _aws_faults() -> Iterator[None]:
    """Raise the client's own errors for what botocore raises, and for what it lets through."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise error_from_botocore(error) from error
    except (urllib3.exceptions.HTTPError, ParserError) as error:
        timed_out = isinstance(error, urllib3.exceptions.TimeoutError)
        raise connection_fault(error, timed_out=timed_out) from error
    except OSError as error:
        if error.filename is None:
            raise connection_fault(error, timed_out=isinstance(error, TimeoutError)) from error
        # A file of AWS's configuration, or the program that it names.
        raise AccessDenied(str(error), code="no_credentials") from error
    except RuntimeError as error:
        # Without a type of its own: "refreshed credentials are still expired".
        if "credentials" not in str(error):
            raise
        raise AccessDenied(str(error), code="no_credentials") from error


def _container_reply(response: Any) -> Reply:
    """Return the container's own answer out of SageMaker's ModelError."""
    # SageMaker says 0 where the container did not answer in time: what a gateway calls 504.
    status = response.get("OriginalStatusCode") or 504
    message = response.get("OriginalMessage") or response["Error"].get("Message", "")
    request_id = response["ResponseMetadata"].get("RequestId")
    headers = {"x-amzn-requestid": request_id} if request_id else {}
    # SageMaker cuts long messages, which can leave half of a surrogate pair.
    return Reply(status, headers, message.encode("utf-8", "replace"))


def _payloads(events: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    with _aws_faults():
        for event in events:
            if "PayloadPart" in event:
                yield event["PayloadPart"]["Bytes"]


def _rounded_down(seconds: float) -> float:
    return math.floor(seconds) if seconds >= 1 else 2.0 ** math.floor(math.log2(seconds))
