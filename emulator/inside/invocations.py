"""InvokeEndpoint and InvokeEndpointWithResponseStream: SageMaker's proxy to the containers."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import http.client
import json
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ministack.core.responses import (
    StreamingResponse,
    error_response_json,
    get_account_id,
    get_region,
)

from emulator.inside import metrics
from emulator.inside.config import CONFIG
from emulator.inside.containers import Container
from emulator.inside.endpoints import endpoints
from emulator.inside.services import ApiError, Response

LIMIT_SECONDS = CONFIG.scaled(60)
STREAM_LIMIT_SECONDS = CONFIG.scaled(480)
_PATH = re.compile(r"/endpoints/([^/]+)/(invocations|invocations-response-stream)")
_FORWARDED = {
    "accept": "Accept",
    "content-type": "Content-Type",
    "x-amzn-sagemaker-accept": "Accept",
    "x-amzn-sagemaker-custom-attributes": "X-Amzn-SageMaker-Custom-Attributes",
    "x-amzn-sagemaker-inference-id": "X-Amzn-SageMaker-Inference-Id",
}
_ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
_TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the "
    "latency metrics for each container in Amazon CloudWatch, resolve the issue, and try again."
)
_CHUNK = 8192


class ModelError(Exception):
    """The container answered an error, or nothing in time."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


async def data_plane(
    method: str, path: str, headers: dict[str, str], body: bytes
) -> Response | None:
    """Answer an invocation; None when the request is not one."""
    match = _PATH.fullmatch(path)
    if method != "POST" or match is None:
        return None
    name, streams = match[1], match[2] != "invocations"
    began = time.monotonic()
    try:
        route = _route(name, headers)
    except ApiError as error:
        refusal: Response = error_response_json(
            error.code, error.message, 400, message_key="Message", content_type="application/json"
        )
        return refusal
    call = _Call(route, streams=streams, began=began)
    try:
        await asyncio.to_thread(call.send, headers, body)
        if streams:
            return 200, call.headers(route.variant), StreamingResponse(call.stream)
        content = await asyncio.to_thread(call.read)
        return 200, call.headers(route.variant), content
    except ModelError as error:
        return _model_error(name, error)


@dataclass(frozen=True)
class _Route:
    """Where a request goes."""

    endpoint: str
    variant: str
    container: Container
    instances: int


def _route(name: str, headers: dict[str, str]) -> _Route:
    """Return the variant and the container that serve a request, which is counted in there."""
    while True:
        found = endpoints.get(name)
        if found is None or (found.fleet is None and found.status != "Creating"):
            raise ApiError(
                "ValidationError", f"Endpoint {name} of account {get_account_id()} not found."
            )
        fleet = found.serving()
        if fleet is None or found.status == "Deleting":
            raise ApiError("ValidationError", f"Endpoint {name} is not in service.")
        target = headers.get("x-amzn-sagemaker-target-variant")
        variant = fleet.choose(target)
        if variant is None:
            raise ApiError(
                "ValidationError", f"Variant {target} does not exist in endpoint {name}."
            )
        container = fleet.containers[variant]
        # A container that drains was replaced meanwhile: the endpoint has another by now.
        if container.enter():
            return _Route(name, variant, container, fleet.counts[variant])


class _Call:
    """One request to a container, answered within the service's limit."""

    def __init__(self, route: _Route, *, streams: bool, began: float) -> None:
        self._route, self._streams, self._began = route, streams, began
        self._sent = time.monotonic()
        limit = STREAM_LIMIT_SECONDS if streams else LIMIT_SECONDS
        self._deadline = self._sent + limit
        self._status = 0
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", route.container.port, timeout=LIMIT_SECONDS
        )

    def send(self, headers: dict[str, str], body: bytes) -> None:
        """Send the request and await the head of its answer.

        Raises:
            ModelError: the container answered an error, or nothing in time.
        """
        sent = {name: headers[key] for key, name in _FORWARDED.items() if key in headers}
        try:
            self._connection.request("POST", "/invocations", body=body, headers=sent)
            self._response = self._connection.getresponse()
            self._status = self._response.status
            if self._status // 100 != 2:
                message = self._response.read().decode(errors="replace")
                raise ModelError(self._status, message)
        except TimeoutError as error:
            self.close(status=0)
            raise ModelError(0, _TIMED_OUT) from error
        except (OSError, http.client.HTTPException) as error:
            self.close(status=500)
            raise ModelError(500, f"the container closed the connection: {error!r}") from error
        except ModelError:
            self.close(status=self._status)
            raise

    def close(self, *, status: int) -> None:
        """Hang up, and count the request by its outcome."""
        self._connection.close()
        self._route.container.leave()
        now = time.monotonic()
        metrics.publish_invocation(
            metrics.Invocation(
                endpoint=self._route.endpoint,
                variant=self._route.variant,
                instances=self._route.instances,
                status=status,
                model_seconds=now - self._sent,
                total_seconds=now - self._began,
            )
        )

    def headers(self, variant: str) -> dict[str, str]:
        """Return the headers of a successful answer."""
        content_type = self._response.getheader("Content-Type", "application/octet-stream")
        found = {"x-Amzn-Invoked-Production-Variant": variant}
        if attributes := self._response.getheader(_ATTRIBUTES):
            found[_ATTRIBUTES] = attributes
        if self._streams:
            found["Content-Type"] = "application/vnd.amazon.eventstream"
            found["X-Amzn-SageMaker-Content-Type"] = content_type
        else:
            # Spelled so that ministack does not give it the type of the control plane's answers.
            found["content-type"] = content_type
        return found

    def read(self) -> bytes:
        """Return the whole answer.

        Raises:
            ModelError: the container broke it off, or took too long.
        """
        with self._counted():
            return b"".join(self._chunks())

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Hang up at the end, and count the request by how its answer ended."""
        try:
            yield
        except ModelError as error:
            self._status = error.status
            raise
        finally:
            self.close(status=self._status)

    def _chunks(self) -> Iterator[bytes]:
        try:
            while chunk := self._response.read1(_CHUNK):
                if time.monotonic() > self._deadline:
                    raise ModelError(0, _TIMED_OUT)
                yield chunk
        except TimeoutError as error:
            raise ModelError(0, _TIMED_OUT) from error
        except (OSError, http.client.HTTPException) as error:
            raise ModelError(500, f"the container broke off its answer: {error!r}") from error

    async def stream(self, send: Any, receive: Any) -> None:
        """Send the answer part by part, as events."""
        with self._counted():
            chunks = self._chunks()
            try:
                while (chunk := await asyncio.to_thread(next, chunks, b"")) != b"":
                    await _send_event(send, event({":event-type": "PayloadPart"}, chunk))
            except ModelError as error:
                self._status = error.status
                fault = {":exception-type": "ModelStreamError", ":message-type": "exception"}
                body = json.dumps({"Message": error.message, "ErrorCode": "StreamBroken"})
                await _send_event(send, event(fault, body.encode()))
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_event(send: Any, message: bytes) -> None:
    await send({"type": "http.response.body", "body": message, "more_body": True})


def event(headers: dict[str, str], payload: bytes) -> bytes:
    """Return one message of AWS's event stream encoding."""
    headers = {":message-type": "event", ":content-type": "application/octet-stream", **headers}
    packed = b""
    for name, value in headers.items():
        packed += struct.pack("!B", len(name)) + name.encode()
        packed += struct.pack("!BH", 7, len(value)) + value.encode()
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    prelude += struct.pack("!I", binascii.crc32(prelude))
    message = prelude + packed + payload
    return message + struct.pack("!I", binascii.crc32(message))


def _model_error(name: str, error: ModelError) -> Response:
    """Answer as SageMaker does when a container fails: 424, whatever its own status was."""
    region, account = get_region(), get_account_id()
    kind = "client" if 400 <= error.status < 500 else "server"
    group = f"/aws/sagemaker/Endpoints/{name}"
    where = (
        f"https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
        f"#logEventViewer:group={group}"
    )
    body = {
        "ErrorCode": "CLIENT_ERROR_FROM_MODEL"
        if kind == "client"
        else "INTERNAL_FAILURE_FROM_MODEL",
        "LogStreamArn": f"arn:aws:logs:{region}:{account}:log-group:{group}",
        "Message": (
            f'Received {kind} error ({error.status}) from primary with message "{error.message}". '
            f"See {where} in account {account} for more information."
        ),
        "OriginalMessage": error.message,
        "OriginalStatusCode": error.status,
    }
    headers = {"Content-Type": "application/json", "x-amzn-errortype": "ModelError"}
    return 424, headers, json.dumps(body).encode()
