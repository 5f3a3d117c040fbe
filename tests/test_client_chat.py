"""Chat through the client, whole and in pieces, as the OpenAI SDK sends and reads it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballot import (
    AsyncBallot,
    Ballot,
    InvalidAnswer,
    InvalidRequest,
    RetryPolicy,
    ScoringFailed,
    TransportFailed,
    Unavailable,
)
from ballot.chat import DeltaReader
from ballot.transport import AsyncHttpTransport, AsyncSageMakerTransport
from tests.scripted_endpoint import (
    ENDPOINT,
    WAYS,
    FakeClock,
    Step,
    aws_session,
    client_of,
    message,
    scripted,
)

MESSAGES = [{"role": "user", "content": "Say hello, Zoë."}]
ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "a-model",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, Zoë."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16},
}


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "a-model",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}],
    }
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
EVENTS = [
    b": ping\n\n",
    delta(role="assistant"),
    delta(content="Hello, "),
    delta(content="Zoë"),
    delta(content="."),
    delta("stop"),
    b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\n',
    DONE,
]
PIECES = ["Hello, ", "Zoë", "."]


def stream(*pieces: bytes) -> Step:
    return Step(200, pieces=pieces, headers={"Content-Type": "text/event-stream"})


def sdk(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)


@pytest.mark.parametrize("way", WAYS)
def test_chat_is_sent_and_read_as_the_sdk_does(way: str) -> None:
    steps = [Step(200, ANSWER, {"Content-Type": "application/json"})] * 2
    with scripted(*steps) as endpoint:
        with client_of(endpoint.url, way) as client:
            answer = client.chat(MESSAGES, model="m", max_tokens=9, temperature=0)
        with sdk(endpoint.url) as other:
            expected = other.chat.completions.create(
                messages=[{"role": "user", "content": "Say hello, Zoë."}],
                model="m",
                max_tokens=9,
                temperature=0,
            )

    ours, theirs = endpoint.received
    assert ours.json == theirs.json
    assert "Zoë".encode() in ours.body
    if way.startswith("http"):
        assert ours.path == theirs.path == "/v1/chat/completions"
    assert answer.text == expected.choices[0].message.content
    assert answer.finish_reason == expected.choices[0].finish_reason
    assert answer.model == expected.model
    assert expected.usage is not None
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.completion_tokens == expected.usage.completion_tokens
    assert answer.raw == ANSWER


@pytest.mark.parametrize("way", WAYS)
def test_streamed_chat_is_sent_and_read_as_the_sdk_does(way: str) -> None:
    with scripted(stream(*EVENTS), stream(*EVENTS)) as endpoint:
        with client_of(endpoint.url, way) as client:
            pieces = list(client.chat_stream(MESSAGES, model="m"))
        with sdk(endpoint.url) as other:
            chunks = other.chat.completions.create(
                messages=[{"role": "user", "content": "Say hello, Zoë."}], model="m", stream=True
            )
            expected = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]

    ours, theirs = endpoint.received
    assert ours.json == theirs.json
    assert pieces == PIECES == [text for text in expected if text]
    if "sagemaker" in way:
        assert ours.path == f"/endpoints/{ENDPOINT}/invocations-response-stream"
    else:
        assert ours.path == theirs.path


@given(cuts=st.lists(st.integers(1, 40), max_size=200), ending=st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_read_however_they_are_cut(cuts: list[int], ending: bytes) -> None:
    whole = b"".join(EVENTS).replace(b"\n", ending)
    reader = DeltaReader()

    read: list[str] = []
    for cut in cuts:
        read += reader.feed(whole[:cut])
        whole = whole[cut:]
    read += reader.feed(whole)
    reader.close()

    assert read == PIECES


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_cannot_begin_yet_is_asked_for_again(way: str) -> None:
    clock = FakeClock()
    steps = (Step(503, b"busy"), Step(drops=True), stream(*EVENTS))
    with scripted(*steps) as endpoint, client_of(endpoint.url, way, clock=clock) as client:
        assert list(client.chat_stream(MESSAGES)) == PIECES

    assert len(endpoint.received) == 3
    assert clock.sleeps == [0.5, 1.0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("streams", [False, True])
def test_a_refusal(way: str, streams: bool) -> None:
    body = {"error": {"message": "too long", "type": "exceed_context_size_error", "code": 400}}
    with (
        scripted(Step(400, body)) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(InvalidRequest) as caught,
    ):
        list(client.chat_stream(MESSAGES)) if streams else client.chat(MESSAGES)

    assert (caught.value.message, caught.value.status) == ("too long", 400)
    assert caught.value.code == "exceed_context_size_error"
    assert len(endpoint.received) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_breaks_off_is_no_answer_and_not_begun_again(way: str) -> None:
    with (
        scripted(stream(*EVENTS[:3])) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(TransportFailed) as caught,
    ):
        list(client.chat_stream(MESSAGES))

    assert caught.value.code == "broken_stream"
    assert len(endpoint.received) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_breaks_inside_a_stream(way: str) -> None:
    step = Step(200, pieces=tuple(EVENTS[:3]), breaks=True)
    with (
        scripted(step) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(TransportFailed) as caught,
    ):
        list(client.chat_stream(MESSAGES))

    assert (caught.value.code, caught.value.retryable) == ("connection_failed", True)


@pytest.mark.parametrize("way", ["sagemaker", "sagemaker-async"])
def test_a_stream_of_events_that_is_damaged(way: str) -> None:
    damaged = message({":message-type": "event", ":event-type": "PayloadPart"}, b"x")[:-1] + b"!"
    step = Step(200, damaged, {"Content-Type": "application/vnd.amazon.eventstream"})
    with (
        scripted(step) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(TransportFailed) as caught,
    ):
        list(client.chat_stream(MESSAGES))

    assert caught.value.code == "connection_failed"


@pytest.mark.parametrize("way", WAYS)
def test_an_error_inside_a_stream(way: str) -> None:
    fault = b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n'
    with (
        scripted(stream(*EVENTS[:3], fault)) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(ScoringFailed) as caught,
    ):
        list(client.chat_stream(MESSAGES))

    assert (caught.value.message, caught.value.code) == ("out of memory", "server_error")


@pytest.mark.parametrize("way", ["sagemaker", "sagemaker-async"])
def test_sagemaker_s_error_inside_a_stream(way: str) -> None:
    headers = {":message-type": "exception", ":exception-type": "ModelStreamError"}
    said = json.dumps({"Message": "too slow", "ErrorCode": "ModelInvocationTimeExceeded"})
    whole = message(headers, said.encode())
    step = Step(200, whole, {"Content-Type": "application/vnd.amazon.eventstream"})
    with (
        scripted(step) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(TransportFailed) as caught,
    ):
        list(client.chat_stream(MESSAGES))

    assert caught.value.code == "ModelStreamError"
    assert "too slow" in caught.value.message


@pytest.mark.parametrize(
    "event", [b"data: {\n\n", b"data: []\n\n", b'data: {"choices": 1}\n\n', b"data: {}\n\n"]
)
def test_events_that_are_not_the_contract(event: bytes) -> None:
    with (
        scripted(stream(event)) as endpoint,
        Ballot(url=endpoint.url) as client,
        pytest.raises(InvalidAnswer),
    ):
        list(client.chat_stream(MESSAGES))


@pytest.mark.parametrize("way", ["http", "sagemaker"])
def test_a_stream_can_be_left_early(way: str) -> None:
    steps = (stream(*EVENTS), Step(200, ANSWER))
    with scripted(*steps) as endpoint, client_of(endpoint.url, way) as client:
        pieces = client.chat_stream(MESSAGES)
        assert next(pieces) == "Hello, "
        pieces.close()
        assert client.chat(MESSAGES).text == "Hello, Zoë."


@pytest.mark.parametrize("way", ["http", "sagemaker"])
def test_a_stream_can_be_left_early_when_awaited(way: str) -> None:
    async def leave(url: str) -> tuple[str, str]:
        transport = (
            AsyncHttpTransport(url)
            if way == "http"
            else AsyncSageMakerTransport(ENDPOINT, session=aws_session(), endpoint_url=url)
        )
        async with AsyncBallot(transport=transport) as client:
            pieces = client.chat_stream(MESSAGES)
            first = await anext(pieces)
            await pieces.aclose()
            return first, (await client.chat(MESSAGES)).text

    with scripted(stream(*EVENTS), Step(200, ANSWER)) as endpoint:
        assert asyncio.run(leave(endpoint.url)) == ("Hello, ", "Hello, Zoë.")


def test_a_stream_that_is_not_read_is_not_asked_for() -> None:
    with scripted() as endpoint, Ballot(url=endpoint.url) as client:
        client.chat_stream(MESSAGES)

    assert endpoint.received == []


def test_whether_to_stream_is_no_option() -> None:
    with Ballot(url="http://127.0.0.1:9") as client:
        with pytest.raises(TypeError, match="chat_stream"):
            client.chat(MESSAGES, stream=True)
        with pytest.raises(TypeError, match="chat_stream"):
            client.chat_stream(MESSAGES, stream=False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"content": None, "tool_calls": []}, ""),
        ({"content": ""}, ""),
    ],
)
def test_an_answer_without_text(change: Any, text: str) -> None:
    choice = {"index": 0, "message": {"role": "assistant", **change}, "finish_reason": "tool_calls"}
    step = Step(200, {"model": "m", "choices": [choice]})
    with scripted(step) as endpoint, Ballot(url=endpoint.url) as client:
        answer = client.chat(MESSAGES)

    assert (answer.text, answer.finish_reason, answer.usage) == (text, "tool_calls", None)


@pytest.mark.parametrize(
    "body", [{}, {"model": "m", "choices": []}, {"model": "m", "choices": [{}]}, {"choices": 1}]
)
def test_an_answer_that_is_not_the_contract(body: Any) -> None:
    with (
        scripted(Step(200, body)) as endpoint,
        Ballot(url=endpoint.url) as client,
        pytest.raises(InvalidAnswer),
    ):
        client.chat(MESSAGES)


@pytest.mark.parametrize("way", WAYS)
def test_the_last_refusal_is_raised_when_attempts_are_used_up(way: str) -> None:
    policy = RetryPolicy(attempts=2)
    with (
        scripted(*[Step(503, b"busy")] * 3) as endpoint,
        client_of(endpoint.url, way, retry=policy, clock=FakeClock()) as client,
        pytest.raises(Unavailable),
    ):
        list(client.chat_stream(MESSAGES))

    assert len(endpoint.received) == 2
