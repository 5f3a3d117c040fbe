"""The gateway and what is behind it: bad answers, SageMaker's refusals, sharing and streams."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import json
import logging
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ballot.gateway import SageMakerTarget, UrlTarget
from ballot.gateway.coalesce import Calls
from tests.adapter_process import PATIENCE, ROOT
from tests.gateway_server import (
    Asked,
    Peer,
    Script,
    ScriptedServer,
    answering,
    running_gateway,
    wait_logged,
)
from tests.test_gateway import ANSWER, BODIES, CHAT, NATIVE, SYSTEM_ONE, check_error, in_front_of
from tests.wire import Connection

STREAMED = {**CHAT, "stream": True}
EVENTS = [b'data: {"choices": [{"delta": {"content": "%d"}}]}\n\n' % number for number in range(3)]
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@contextlib.contextmanager
def gateway_client(
    script: Script, **settings: Any
) -> Iterator[tuple[httpx.Client, ScriptedServer]]:
    with (
        ScriptedServer(script) as endpoint,
        running_gateway(**in_front_of(endpoint), **settings) as running,
        running.client() as client,
    ):
        yield client, endpoint


# Bad answers


def cut_off(peer: Peer, _: Asked) -> None:
    peer.answer(200, ANSWER[:20], content_length=str(len(ANSWER)))
    peer.hang_up()


def reset(peer: Peer, _: Asked) -> None:
    peer.reset()


def hang(peer: Peer, _: Asked) -> None:
    peer.wait_closed()


def drip(peer: Peer, _: Asked) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    with contextlib.suppress(OSError):
        while True:
            peer.send(b" ")
            time.sleep(0.01)


def garbage(peer: Peer, _: Asked) -> None:
    peer.send(b"\x00\x01\x02\r\n\r\n")
    peer.hang_up()


HTML = b"<html><h1>Internal Server Error</h1> at 10.0.0.7</html>"
BAD_ANSWERS: dict[str, tuple[Script, tuple[int, str]]] = {
    "not JSON": (answering(b"ok"), (502, "bad_endpoint_answer")),
    "nothing": (answering(b""), (502, "bad_endpoint_answer")),
    "another type": (answering([1, 2]), (502, "bad_endpoint_answer")),
    "another protocol": (answering({"x": 1}), (502, "bad_endpoint_answer")),
    "not UTF-8": (answering(b'{"result": "\xff"}'), (502, "bad_endpoint_answer")),
    "nested too deep": (answering(b"[" * 100_000), (502, "bad_endpoint_answer")),
    "elsewhere": (
        answering(b"", status=307, location="http://127.0.0.1:1/"),
        (502, "bad_endpoint_answer"),
    ),
    "a key is asked for": (answering({"error": "who?"}, status=401), (502, "endpoint_denied")),
    "forbidden": (answering(b"", status=403), (502, "endpoint_denied")),
    "cut off": (cut_off, (502, "endpoint_unreachable")),
    "reset": (reset, (502, "endpoint_unreachable")),
    "not HTTP": (garbage, (502, "endpoint_unreachable")),
    "hangs": (hang, (504, "endpoint_timeout")),
    "drips": (drip, (504, "endpoint_timeout")),
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_is_an_error_of_the_routes_protocol(name: str, path: str) -> None:
    script, expected = BAD_ANSWERS[name]
    timeout = 0.5 if expected[0] == 504 else PATIENCE
    with gateway_client(script, call_timeout_seconds=timeout) as (client, endpoint):
        assert check_error(client.post(path, json=BODIES[path])) == expected
        assert len(endpoint.asked) == 1


# A stream may take its time, as long as something comes.
@pytest.mark.parametrize("name", sorted(BAD_ANSWERS.keys() - {"drips"}))
def test_a_bad_stream_is_an_error_before_it_begins(name: str) -> None:
    script, expected = BAD_ANSWERS[name]
    timeout = 0.5 if expected[0] == 504 else PATIENCE
    with gateway_client(script, call_timeout_seconds=timeout) as (client, _):
        assert check_error(client.post("/v1/chat/completions", json=STREAMED)) == expected


def test_nobody_listens() -> None:
    with ScriptedServer(answering(ANSWER)) as endpoint:
        target = UrlTarget(endpoint.url)
    with running_gateway(decisions=target) as running, running.client() as client:
        answer = client.post("/v1/systemone", json=SYSTEM_ONE)
        assert check_error(answer) == (502, "endpoint_unreachable")


def test_models_when_the_endpoint_does_not_answer() -> None:
    with gateway_client(answering(HTML)) as (client, endpoint):
        assert check_error(client.get("/v1/models")) == (502, "bad_endpoint_answer")
        assert check_error(client.get("/v1/models")) == (502, "bad_endpoint_answer")
        assert len(endpoint.asked) == 2


# The container's own errors

NATIVE_ERROR = {
    "error": "decision.id is missing",
    "code": "missing_field",
    "retryable": False,
    "field": "decision.id",
    "request_id": "theirs",
}
SYSTEM_ONE_ERROR = {
    "detail": [{"loc": ["body", "state"], "msg": "this field is missing", "type": "missing_field"}],
    "x_retryable": False,
    "x_request_id": "theirs",
}
OPENAI_ERROR = {"error": {"message": "no such model", "type": "t", "param": "model", "code": "c"}}
OWN = {
    "/invocations": (400, NATIVE_ERROR),
    "/v1/systemone": (422, SYSTEM_ONE_ERROR),
    "/v1/chat/completions": (404, OPENAI_ERROR),
}


@pytest.mark.parametrize("path", OWN)
def test_an_error_of_the_same_protocol_comes_as_it_is(path: str) -> None:
    status, error = OWN[path]
    with gateway_client(answering(error, status=status)) as (client, _):
        answer = client.post(path, json=BODIES[path])

    assert (answer.status_code, answer.json()) == (status, error)
    if path != "/v1/chat/completions":
        assert answer.headers["x-request-id"] == "theirs"


def test_a_native_error_becomes_one_of_system_one() -> None:
    with gateway_client(answering(NATIVE_ERROR, status=400)) as (client, _):
        answer = client.post("/v1/systemone", json=SYSTEM_ONE)
    place = {
        "loc": ["body", "decision", "id"],
        "msg": NATIVE_ERROR["error"],
        "type": "missing_field",
    }
    assert (answer.status_code, answer.json()["detail"]) == (422, [place])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/systemone", {"error_type": "busy", "message": "the queue is full", "x_field": None}),
        (
            "/v1/chat/completions",
            {"message": "the queue is full", "type": "server_error", "param": None, "code": "busy"},
        ),
    ],
)
def test_a_busy_container_is_busy_in_every_protocol(path: str, expected: Any) -> None:
    busy = {**NATIVE_ERROR, "error": "the queue is full", "code": "busy", "retryable": True}
    busy["field"] = None
    with gateway_client(answering(busy, status=503, retry_after="7")) as (client, _):
        answer = client.post(path, json=BODIES[path])
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "7"
    assert expected in answer.json().values()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", [HTML, b"", b"[1]", b'{"error": null}', b'{"error'])
def test_an_error_that_nobody_can_read_keeps_its_status(path: str, body: bytes) -> None:
    with gateway_client(answering(body, status=500)) as (client, _):
        answer = client.post(path, json=BODIES[path])
    assert answer.status_code == 500
    assert "endpoint_error" in answer.text
    assert "the endpoint answered 500" in answer.text
    assert "10.0.0.7" not in answer.text


# SageMaker


@contextlib.contextmanager
def sagemaker_client(
    script: Script, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[tuple[httpx.Client, ScriptedServer]]:
    """Give a client of a gateway whose SageMaker is scripted."""
    with ScriptedServer(script) as service:
        variables = {
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": service.url,
            "NO_PROXY": "127.0.0.1",
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        target = SageMakerTarget("the-endpoint", region="eu-west-1")
        with (
            running_gateway(decisions=target, chat=target, **settings) as running,
            running.client() as client,
        ):
            yield client, service


def test_calls_are_signed_and_go_to_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with sagemaker_client(answering(ANSWER), monkeypatch) as (client, service):
        assert client.post("/v1/systemone", json=SYSTEM_ONE).content == ANSWER
    (asked,) = service.asked
    assert asked.path == "/endpoints/the-endpoint/invocations"
    assert "Credential=AKIDEXAMPLE/" in asked.headers["authorization"]
    assert "/eu-west-1/sagemaker/aws4_request" in asked.headers["authorization"]
    assert json.loads(asked.body) == SYSTEM_ONE


ARN = "arn:aws:sts::123456789012:assumed-role/the-role/session"
REFUSALS: dict[str, tuple[int, str, str, tuple[int, str]]] = {
    "throttled": (400, "ThrottlingException", "Rate exceeded", (429, "throttled")),
    "not ready": (429, "ModelNotReadyException", "not ready", (429, "throttled")),
    "no endpoint": (
        400,
        "ValidationError",
        "Endpoint the-endpoint of account 123456789012 not found.",
        (502, "endpoint_not_found"),
    ),
    "invalid": (400, "ValidationError", f"Content type of {ARN}", (502, "endpoint_refused")),
    "denied": (
        403,
        "AccessDeniedException",
        f"User: {ARN} is not authorized to perform: sagemaker:InvokeEndpoint",
        (502, "endpoint_denied"),
    ),
    "expired": (403, "ExpiredTokenException", "The token has expired", (502, "endpoint_denied")),
    "signature": (403, "SignatureDoesNotMatch", "No match", (502, "endpoint_denied")),
    "unavailable": (503, "ServiceUnavailable", "", (503, "endpoint_unavailable")),
    "failed": (500, "InternalFailure", "", (503, "endpoint_unavailable")),
    "dependency": (530, "InternalDependencyException", "", (503, "endpoint_unavailable")),
    "HTML": (502, "", "", (503, "endpoint_unavailable")),
}


@pytest.mark.parametrize("body", [*BODIES.items(), ("/v1/chat/completions", STREAMED)])
@pytest.mark.parametrize("name", REFUSALS)
def test_what_sagemaker_refuses_is_a_documented_error(
    name: str, body: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, kind, said, expected = REFUSALS[name]
    error = {"Message": said, "__type": kind}
    script = answering(HTML if not kind else error, status=status, x_amzn_errortype=kind)
    with sagemaker_client(script, monkeypatch) as (client, service):
        answer = client.post(body[0], json=body[1])

    assert check_error(answer) == expected
    assert ("retry-after" in answer.headers) == (expected[0] in (429, 503))
    assert "123456789012" not in answer.text
    assert "secret" not in answer.text
    assert len(service.asked) == 1


def model_error(status: int, message: str) -> Script:
    """Return SageMaker's answer for an error of a container."""
    body = {
        "ErrorCode": "CLIENT_ERROR_FROM_MODEL",
        "LogStreamArn": "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/sagemaker",
        "Message": f'Received error ({status}) from primary with message "{message}". See account',
        "OriginalMessage": message,
        "OriginalStatusCode": status,
    }
    return answering(body, status=424, x_amzn_errortype="ModelError")


@pytest.mark.parametrize("path", OWN)
def test_the_containers_error_is_taken_out_of_sagemakers(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, error = OWN[path]
    with sagemaker_client(model_error(status, json.dumps(error)), monkeypatch) as (client, _):
        answer = client.post(path, json=BODIES[path])
    assert (answer.status_code, answer.json()) == (status, error)
    assert "retry-after" not in answer.headers


def test_a_loading_container_is_worth_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = {**NATIVE_ERROR, "code": "loading", "retryable": True}
    with sagemaker_client(model_error(503, json.dumps(loading)), monkeypatch) as (client, _):
        answer = client.post("/v1/systemone", json=SYSTEM_ONE)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["detail"]["error_type"] == "loading"


def test_an_error_that_sagemaker_cut_keeps_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = json.dumps(NATIVE_ERROR)[:30]
    with sagemaker_client(model_error(400, cut), monkeypatch) as (client, _):
        answer = client.post("/invocations", json=NATIVE)
    assert answer.status_code == 400
    assert answer.json()["code"] == "endpoint_error"


def test_an_error_that_ends_in_half_a_character_keeps_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with sagemaker_client(model_error(500, "it broke \ud83d"), monkeypatch) as (client, _):
        answer = client.post("/invocations", json=NATIVE)
    assert (answer.status_code, answer.json()["code"]) == (500, "endpoint_error")


def test_a_container_that_did_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    late = model_error(0, "Your invocation timed out while waiting for a response")
    with sagemaker_client(late, monkeypatch) as (client, _):
        answer = client.post("/v1/systemone", json=SYSTEM_ONE)
    assert check_error(answer) == (504, "endpoint_timeout")


@pytest.mark.parametrize("name", ["cut off", "reset", "not HTTP", "not JSON"])
def test_a_broken_answer_of_sagemaker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script, expected = BAD_ANSWERS[name]
    with sagemaker_client(script, monkeypatch) as (client, _):
        assert check_error(client.post("/v1/systemone", json=SYSTEM_ONE)) == expected


def test_without_credentials_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with sagemaker_client(answering(ANSWER), monkeypatch) as (client, service):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        answer = client.post("/v1/systemone", json=SYSTEM_ONE)
    assert check_error(answer) == (502, "endpoint_denied")
    assert service.asked == []


# One call for all who ask the same


def test_callers_share_a_call_and_one_that_leaves_takes_nobody_along() -> None:
    async def run() -> tuple[list[Any], int]:
        calls: Calls[str] = Calls(1)
        begun: list[asyncio.Future[str]] = []

        async def function() -> str:
            begun.append(asyncio.get_running_loop().create_future())
            return await begun[-1]

        callers = [asyncio.ensure_future(calls.share(b"key", function)) for _ in range(3)]
        await until(lambda: begun)
        callers[0].cancel()
        await asyncio.sleep(0)
        begun[0].set_result("answer")
        return await asyncio.gather(*callers, return_exceptions=True), len(begun)

    answers, count = asyncio.run(run())
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [("answer", True), ("answer", True)]
    assert count == 1


def test_a_retry_joins_only_the_call_that_was_left() -> None:
    async def run() -> tuple[list[Any], int]:
        calls: Calls[int] = Calls(3)
        begun: list[asyncio.Future[int]] = []

        async def function() -> int:
            begun.append(asyncio.get_running_loop().create_future())
            return await begun[-1]

        def ask() -> asyncio.Future[tuple[int, bool]]:
            return asyncio.ensure_future(calls.share(b"key", function, only_left=True))

        callers = [ask(), ask()]
        await until(lambda: len(begun) == 2)
        callers[1].cancel()
        await asyncio.gather(callers[1], return_exceptions=True)
        callers += [ask(), ask()]
        await until(lambda: len(begun) == 3)
        for number, one in enumerate(begun):
            one.set_result(number)
        answers = await asyncio.gather(*callers, return_exceptions=True)
        return answers, len(calls._calls)

    answers, left = asyncio.run(run())
    assert isinstance(answers.pop(1), asyncio.CancelledError)
    assert answers == [(0, False), (1, True), (2, False)]
    assert left == 0


def test_an_answer_that_all_have_left_is_for_who_asks_again_once() -> None:
    async def run() -> tuple[list[Any], int]:
        calls: Calls[int] = Calls(1)
        begun: list[asyncio.Future[int]] = []

        async def function() -> int:
            begun.append(asyncio.get_running_loop().create_future())
            return await begun[-1]

        caller = asyncio.ensure_future(calls.share(b"key", function))
        await until(lambda: begun)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        begun[0].set_result(1)
        await asyncio.sleep(0)
        again = await calls.share(b"key", function)
        afresh = asyncio.ensure_future(calls.share(b"key", function))
        await until(lambda: len(begun) == 2)
        begun[1].set_result(2)
        return [again, await afresh], len(begun)

    assert asyncio.run(run()) == ([(1, True), (2, False)], 2)


def test_an_unheard_answer_is_not_kept_for_long_nor_an_error_at_all() -> None:
    async def run() -> list[Any]:
        calls: Calls[int] = Calls(1, unheard_seconds=0)
        found: list[Any] = []
        for outcome in (1, ValueError(), 3):
            begun: list[asyncio.Future[int]] = []

            async def function(begun: list[asyncio.Future[int]] = begun) -> int:
                begun.append(asyncio.get_running_loop().create_future())
                return await begun[-1]

            caller = asyncio.ensure_future(calls.share(b"key", function))
            await until(lambda begun=begun: begun)
            caller.cancel()
            await asyncio.gather(caller, return_exceptions=True)
            if isinstance(outcome, int):
                begun[0].set_result(outcome)
            else:
                begun[0].set_exception(outcome)
            for _ in range(5):
                await asyncio.sleep(0)
            found.append(len(calls._calls))
        return found

    assert asyncio.run(run()) == [0, 0, 0]


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


class Gate:
    """A script that answers once it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, peer: Peer, _: Asked) -> None:
        assert self.open.wait(PATIENCE)
        peer.answer(200, ANSWER)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.open.set()


def encoded(body: Any) -> bytes:
    """Return a body as httpx sends it: only equal bytes are the same question."""
    return json.dumps(body, separators=(",", ":")).encode()


def post(path: str, body: Any) -> bytes:
    content = encoded(body)
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize("path", BODIES)
def test_a_retry_after_a_hang_up_asks_the_endpoint_nothing_new(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ballot.gateway")
    gate = Gate()
    with (
        ScriptedServer(gate) as endpoint,
        gate,
        running_gateway(**in_front_of(endpoint)) as running,
        running.client() as client,
    ):
        with Connection(running.port) as caller:
            caller.send(post(path, BODIES[path]))
            endpoint.wait_asked()
        wait_logged(caplog, outcome="caller_gone")
        gate.open.set()
        assert client.post(path, json=BODIES[path]).content == ANSWER
        assert len(endpoint.asked) == 1
        assert client.post(path, json=BODIES[path]).content == ANSWER
        assert len(endpoint.asked) == 2


@pytest.mark.parametrize(("path", "calls"), [("/v1/chat/completions", 2), ("/invocations", 1)])
def test_equal_chats_at_once_get_an_answer_each(path: str, calls: int) -> None:
    gate = Gate()
    with (
        ScriptedServer(gate) as endpoint,
        gate,
        running_gateway(**in_front_of(endpoint)) as running,
        Connection(running.port) as first,
        Connection(running.port) as second,
        running.client() as client,
    ):
        first.send(post(path, BODIES[path]))
        endpoint.wait_asked()
        second.send(post(path, BODIES[path]))
        if calls == 2:
            endpoint.wait_asked()
        else:
            # The second is in by the time that a third is answered after it.
            assert client.get("/healthz").status_code == 200
        gate.open.set()
        assert (first.answer().status, second.answer().status) == (200, 200)
        assert len(endpoint.asked) == calls


def test_a_call_that_has_not_begun_is_dropped_with_its_last_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="ballot.gateway")
    gate = Gate()
    with (
        ScriptedServer(gate) as endpoint,
        gate,
        running_gateway(**in_front_of(endpoint), max_calls=1) as running,
        Connection(running.port) as first,
        running.client() as client,
    ):
        first.send(post("/invocations", {"number": 1}))
        endpoint.wait_asked()
        with Connection(running.port) as second:
            second.send(post("/invocations", {"number": 2}))
            # The second waits behind the first by the time that a third answers after it.
            assert client.get("/healthz").status_code == 200
        wait_logged(caplog, outcome="caller_gone")
        gate.open.set()
        assert first.answer().status == 200
        assert client.post("/invocations", json={"number": 3}).status_code == 200

    assert [json.loads(asked.body)["number"] for asked in endpoint.asked] == [1, 3]


def test_the_same_body_on_another_route_is_another_question() -> None:
    with gateway_client(answering(ANSWER)) as (client, endpoint):
        for path in ("/invocations", "/v1/systemone"):
            assert client.post(path, json=SYSTEM_ONE).status_code == 200
    assert [asked.path for asked in endpoint.asked] == ["/invocations", "/v1/systemone"]


@pytest.mark.parametrize("path", BODIES)
def test_more_requests_than_the_limit_are_told_to_wait(path: str) -> None:
    gate = Gate()
    with (
        ScriptedServer(gate) as endpoint,
        gate,
        running_gateway(**in_front_of(endpoint), max_requests=1) as running,
        Connection(running.port) as first,
        running.client() as client,
    ):
        first.send(post("/invocations", NATIVE))
        endpoint.wait_asked()
        refused = client.post(path, json=BODIES[path])
        assert check_error(refused) == (503, "gateway_busy")
        assert refused.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200
        gate.open.set()
        assert first.answer().status == 200
        assert client.post(path, json=BODIES[path]).status_code == 200


# Streams


def stream(*pieces: bytes, ends: bool = True) -> Script:
    def script(peer: Peer, _: Asked) -> None:
        peer.send(STREAM_HEAD)
        for piece in pieces:
            peer.send(piece)
        if ends:
            peer.hang_up()
        else:
            peer.wait_closed()

    return script


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_events_come_whole_however_they_are_cut(line_end: bytes) -> None:
    whole = b"".join([*EVENTS, DONE]).replace(b"\n", line_end)
    pieces = [whole[start : start + 7] for start in range(0, len(whole), 7)]
    with gateway_client(stream(*pieces)) as (client, endpoint):
        answer = client.post("/v1/chat/completions", json=STREAMED)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.content == b"".join([*EVENTS, DONE])
    assert json.loads(endpoint.asked[0].body) == STREAMED


def test_an_event_is_passed_on_before_the_next_one_comes() -> None:
    more = threading.Event()

    def script(peer: Peer, _: Asked) -> None:
        peer.send(STREAM_HEAD + EVENTS[0])
        assert more.wait(PATIENCE)
        peer.send(DONE)
        peer.hang_up()

    with (
        gateway_client(script) as (client, _),
        client.stream("POST", "/v1/chat/completions", json=STREAMED) as answer,
    ):
        pieces = answer.iter_bytes()
        assert next(pieces) == EVENTS[0]
        more.set()
        assert b"".join(pieces) == DONE


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((EVENTS[0], EVENTS[1][:9]), "bad_endpoint_answer"),
        ((EVENTS[0], b"<html>\n\n"), "bad_endpoint_answer"),
        ((EVENTS[0], b"data: " + b"x" * (1 << 20) + b"x\n\n"), "bad_endpoint_answer"),
    ],
)
def test_a_stream_that_goes_wrong_ends_with_an_error(
    pieces: tuple[bytes, ...], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ballot.gateway")
    with gateway_client(stream(*pieces)) as (client, _):
        answer = client.post("/v1/chat/completions", json=STREAMED)
        wait_logged(caplog, outcome=expected)
    assert answer.content.startswith(EVENTS[0])
    error = json.loads(answer.content.removeprefix(EVENTS[0]).removeprefix(b"data: "))
    assert error["error"]["code"] == expected


def test_a_stream_that_falls_silent_ends_with_an_error() -> None:
    script = stream(EVENTS[0], ends=False)
    with gateway_client(script, call_timeout_seconds=0.5) as (client, _):
        answer = client.post("/v1/chat/completions", json=STREAMED)
    error = json.loads(answer.content.removeprefix(EVENTS[0]).removeprefix(b"data: "))
    assert error["error"]["code"] == "endpoint_timeout"


def test_streams_are_not_shared() -> None:
    script = stream(*EVENTS, DONE)
    with gateway_client(script) as (client, endpoint):
        with client.stream("POST", "/v1/chat/completions", json=STREAMED) as first:
            second = client.post("/v1/chat/completions", json=STREAMED)
            assert second.content == first.read()
        assert len(endpoint.asked) == 2


@pytest.mark.parametrize("sent", [(), (EVENTS[0],)], ids=["before the first event", "after it"])
def test_a_caller_that_hangs_up_closes_its_stream(
    sent: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ballot.gateway")
    closed = threading.Event()

    def script(peer: Peer, _: Asked) -> None:
        peer.send(STREAM_HEAD + b"".join(sent))
        peer.wait_closed()
        closed.set()

    with ScriptedServer(script) as endpoint, running_gateway(**in_front_of(endpoint)) as running:
        with Connection(running.port) as caller:
            caller.send(post("/v1/chat/completions", STREAMED))
            endpoint.wait_asked()
            if sent:
                assert caller.answer(has_body=False).status == 200
        assert closed.wait(PATIENCE)
        wait_logged(caplog, outcome="caller_gone")


def event(payload: bytes, **headers: str) -> bytes:
    """Return a message of AWS's event stream encoding, by its documentation."""
    packed = b""
    for name, value in headers.items():
        key = f":{name.replace('_', '-')}".encode()
        packed += bytes([len(key)]) + key + struct.pack("!BH", 7, len(value)) + value.encode()
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    message = prelude + struct.pack("!I", binascii.crc32(prelude)) + packed + payload
    return message + struct.pack("!I", binascii.crc32(message))


# As SageMaker sends it: botocore waits for 64 KiB of a stream that is not chunked.
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def part(payload: bytes) -> bytes:
    return event(payload, message_type="event", event_type="PayloadPart")


def test_sagemakers_stream_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"".join([*EVENTS, DONE])
    parts = [part(whole[start : start + 11]) for start in range(0, len(whole), 11)]
    with sagemaker_client(stream(*parts), monkeypatch) as (client, service):
        answer = client.post("/v1/chat/completions", json=STREAMED)
    assert answer.content == whole
    assert service.asked[0].path == "/endpoints/the-endpoint/invocations-response-stream"


def test_sagemakers_stream_that_breaks_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = json.dumps({"Message": f"broken by {ARN}", "ErrorCode": "StreamBroken"}).encode()
    broken = event(fault, message_type="exception", exception_type="ModelStreamError")
    with sagemaker_client(stream(part(EVENTS[0]), broken), monkeypatch) as (client, _):
        answer = client.post("/v1/chat/completions", json=STREAMED)
    error = json.loads(answer.content.removeprefix(EVENTS[0]).removeprefix(b"data: "))
    assert error["error"]["code"] == "endpoint_unreachable"
    assert "123456789012" not in answer.text


def test_a_caller_that_hangs_up_ends_sagemakers_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ballot.gateway")
    closed = threading.Event()

    def script(peer: Peer, _: Asked) -> None:
        peer.send(CHUNKED_HEAD + chunk(part(EVENTS[0])))
        try:
            while True:
                peer.send(chunk(part(EVENTS[1])))
                time.sleep(0.01)
        except OSError:
            closed.set()

    with sagemaker_client(script, monkeypatch) as (client, _):
        with client.stream("POST", "/v1/chat/completions", json=STREAMED) as answer:
            assert next(answer.iter_bytes()).startswith(EVENTS[0])
        assert closed.wait(PATIENCE)
        wait_logged(caplog, outcome="caller_gone")


def test_a_stream_that_comes_after_its_caller_left_is_closed_and_counts_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, closed = threading.Event(), threading.Event()

    def script(peer: Peer, asked: Asked) -> None:
        if asked.path.endswith("/invocations"):
            peer.answer(200, ANSWER)
            return
        assert gate.wait(PATIENCE)
        peer.send(CHUNKED_HEAD)
        try:
            while True:
                peer.send(chunk(part(EVENTS[0])))
                time.sleep(0.01)
        except OSError:
            closed.set()

    with sagemaker_client(script, monkeypatch, max_calls=1) as (client, service):
        port = client.base_url.port
        assert port is not None
        with Connection(port) as caller:
            caller.send(post("/v1/chat/completions", STREAMED))
            service.wait_asked()
        with Connection(port) as other:
            other.send(post("/invocations", NATIVE))
            try:
                with pytest.raises(queue.Empty):
                    service.arrived.get(timeout=0.3)
            finally:
                gate.set()
            assert other.answer().status == 200
        assert closed.wait(PATIENCE)


# Ending

_PROGRAM = """
import sys
from ballot.gateway import GatewaySettings, UrlTarget, run
run(GatewaySettings(decisions=UrlTarget(sys.argv[1]), port=0))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_once_what_was_accepted_is_answered(number: signal.Signals) -> None:
    gate = Gate()
    with ScriptedServer(gate) as endpoint, gate:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, endpoint.url],
            cwd=ROOT / "client",
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            assert started["event"] == "listening"
            with Connection(started["port"]) as caller:
                caller.send(post("/invocations", NATIVE))
                endpoint.wait_asked()
                process.send_signal(number)
                while not refuses(started["port"]):
                    pass
                gate.open.set()
                assert caller.answer().body == ANSWER
            assert process.wait(PATIENCE) == 0
            lines = [json.loads(line) for line in process.stdout]
    assert [(line["event"], line.get("outcome")) for line in lines] == [
        ("request", "ok"),
        ("stopped", None),
    ]


def refuses(port: int) -> bool:
    try:
        Connection(port).close()
    except ConnectionError as error:
        # A connection that is still in the queue when the port closes is reset.
        return isinstance(error, ConnectionRefusedError)
    return False
