"""An endpoint that answers what a test scripts: as a container over HTTP, or through SageMaker.

It stands for the far side alone: what it puts around an answer is in SageMaker's published form
(HTTP 424 for a container's error, event stream messages for a stream).
"""

from __future__ import annotations

import asyncio
import binascii
import functools
import json
import struct
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from boto3.session import Session

from ballot import AsyncBallot, Ballot, Decision, Option, RetryPolicy
from ballot.retry import Clock
from ballot.transport import (
    AsyncHttpTransport,
    AsyncSageMakerTransport,
    HttpTransport,
    SageMakerTransport,
)

ENDPOINT = "decide"
REGION = "eu-west-1"
AWS_REQUEST_ID = "00000000-0000-4000-8000-000000000001"
WAYS = ("http", "http-async", "sagemaker", "sagemaker-async")


@dataclass(frozen=True)
class Step:
    """One answer of the container. `body` is JSON unless it is bytes, `pieces` a stream's.

    `drops` closes the connection instead, `breaks` in the middle of the pieces; `then` is called
    before anything is sent.
    """

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)
    pieces: tuple[bytes, ...] | None = None
    drops: bool = False
    breaks: bool = False
    then: Callable[[], object] = lambda: None

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class AwsStep(Step):
    """An answer of SageMaker itself, under the name of one of its errors."""

    error: str = ""


@dataclass(frozen=True)
class Received:
    """A request that came in; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


DECISION = Decision(id="d", state="s", question="q?", options=(Option("a", "x"), Option("b", "y")))
MODEL = {
    "file": "m.gguf",
    "sha256": "0" * 64,
    "architecture": "llama",
    "quantization": "Q4_1",
    "tensor_type": "q4_1",
    "context_tokens": 4096,
    "threads": 2,
    "gpu_layers": 0,
    "backends": ["CPU"],
    "llama_cpp": "b1",
}
RESULT: dict[str, Any] = {
    "id": "d",
    "option_ids": ["a", "b"],
    "probabilities": [0.25, 0.75],
    "option_logits": [1.0, 2.0],
    "answer_token_ids": [49, 50],
    "input_tokens": 9,
    "cached_tokens": 3,
    "allowed_token_mass": 0.5,
    "prompt_sha256": "1" * 64,
    "prompt_version": "direct-options-v1",
    "calibration": None,
    "model": MODEL,
    "readout": "logits",
    "timing": {"queue_seconds": 0.0, "forward_seconds": 0.1, "total_seconds": 0.1},
}
GOOD = Step(200, {"result": RESULT})


class ScriptedEndpoint:
    """Answers the steps in turn, and keeps every request."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = iter(steps)
        self._lock = threading.Lock()
        self.received: list[Received] = []
        self.url = ""

    def next_step(self, request: Received) -> Step:
        with self._lock:
            self.received.append(request)
            return next(self._steps, Step(599, b"the script has ended"))


@contextmanager
def scripted(*steps: Step) -> Iterator[ScriptedEndpoint]:
    """Run an endpoint with a script on a free port of this machine."""
    endpoint = ScriptedEndpoint(steps)

    class Handler(_Handler):
        script = endpoint

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        endpoint.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ScriptedEndpoint

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        step = self.script.next_step(Received(self.path, headers, body))
        step.then()
        if step.drops:
            self.close_connection = True
        elif not self.path.startswith("/endpoints/"):
            self._answer(step.status, step.content, step.headers, step.pieces, step.breaks)
        elif isinstance(step, AwsStep):
            said = json.dumps({"Message": step.content.decode()}).encode()
            self._answer(step.status, said, {"x-amzn-ErrorType": step.error})
        elif step.status // 100 == 2:
            pieces = step.pieces and tuple(map(payload_part, step.pieces))
            kind = "application/vnd.amazon.eventstream" if pieces else "application/json"
            self._answer(200, step.content, {"Content-Type": kind}, pieces, step.breaks)
        else:
            self._answer(424, model_error(step), {"x-amzn-ErrorType": "ModelError"})

    def _answer(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str],
        pieces: tuple[bytes, ...] | None = None,
        breaks: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in {"x-amzn-RequestId": AWS_REQUEST_ID, **headers}.items():
            self.send_header(name, value)
        if pieces is None:
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if breaks:
            self.wfile.write(b"ff\r\n")
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")


def model_error(step: Step) -> bytes:
    """Return what SageMaker answers, with HTTP 424, when a container answers an error."""
    message = step.content.decode()
    return json.dumps(
        {
            "ErrorCode": "INTERNAL_FAILURE_FROM_MODEL",
            "LogStreamArn": "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/sagemaker",
            "Message": f'Received server error ({step.status}) with message "{message}"',
            "OriginalMessage": message,
            "OriginalStatusCode": step.status,
        }
    ).encode()


def payload_part(payload: bytes) -> bytes:
    """Return a piece of a stream as an event stream message."""
    return message({":message-type": "event", ":event-type": "PayloadPart"}, payload)


def message(headers: dict[str, str], payload: bytes) -> bytes:
    """Return a message of AWS's event stream encoding, whose header values are strings."""
    packed = b"".join(
        struct.pack("!B", len(name))
        + name.encode()
        + struct.pack("!BH", 7, len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    prelude += struct.pack("!I", binascii.crc32(prelude))
    whole = prelude + packed + payload
    return whole + struct.pack("!I", binascii.crc32(whole))


class FakeClock:
    """A clock that moves only when something sleeps, or a test moves it; jitter is what is said."""

    def __init__(self, *draws: float) -> None:
        self.seconds = 0.0
        self.sleeps: list[float] = []
        self._draws = iter(draws)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    @property
    def clock(self) -> Clock:
        return Clock(
            now=lambda: self.seconds,
            sleep=self.sleep,
            sleep_async=self.sleep_async,
            draw=lambda: next(self._draws, 1.0),
        )


@functools.cache
def aws_session() -> Session:
    """Return a session with credentials that nobody has; it keeps the service's model."""
    return Session(
        aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="secret", region_name=REGION
    )


class Awaited:
    """`AsyncBallot` behind the methods of `Ballot`, so that one test covers both."""

    def __init__(self, client: Callable[[], AsyncBallot]) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(_made(client))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def run(*arguments: Any, **options: Any) -> Any:
            called = method(*arguments, **options)
            if isinstance(called, AsyncGenerator):
                return iter(self._runner.run(_listed(called)))
            return self._runner.run(called)

        return run

    def run(self, using: Callable[[AsyncBallot], Coroutine[Any, Any, None]]) -> None:
        self._runner.run(using(self._client))

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


async def _made(client: Callable[[], AsyncBallot]) -> AsyncBallot:
    return client()


async def _listed(items: AsyncGenerator[str, None]) -> list[str]:
    return [item async for item in items]


def client_of(
    url: str, way: str, *, retry: RetryPolicy | None = None, clock: FakeClock | None = None
) -> Any:
    """Return a client of a server, going one of the `WAYS`: a `Ballot`, or one like it."""
    through: Any = {"session": aws_session(), "endpoint_url": url}
    options: Any = {"retry": retry, "clock": clock and clock.clock}
    if way == "http":
        return Ballot(transport=HttpTransport(url), **options)
    if way == "sagemaker":
        return Ballot(transport=SageMakerTransport(ENDPOINT, **through), **options)
    if way == "http-async":
        return Awaited(lambda: AsyncBallot(transport=AsyncHttpTransport(url), **options))
    return Awaited(
        lambda: AsyncBallot(transport=AsyncSageMakerTransport(ENDPOINT, **through), **options)
    )
