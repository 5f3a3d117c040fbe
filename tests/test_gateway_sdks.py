"""The official SDKs, unmodified, and the conformance suite, through the gateway.

Behind it are an emulated decision endpoint, which is the adapter on a small random model that takes
the 255 options of the suite in its stride, and an emulated chat endpoint.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import typesafe_sdk
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

from ballot.gateway import SageMakerTarget
from tests.adapter_process import PATIENCE
from tests.emulated_endpoints import EmulatedEndpoints, emulated_endpoints
from tests.gateway_server import RunningGateway, running_gateway
from tests.gguf_models import write_hybrid_model

KEY = "a-key-of-the-tests"
MODEL = "qwen35-random"
TICKET = "I was charged twice for my March invoice. Please refund me today."
NOUL = Noul(instructions="Is the customer asking for money back?")
CHOICE = Choice(
    instructions="Which team should handle this ticket?",
    criteria={"billing": "Payments, invoices, refunds", "technical": "Bugs", "sales": None},
)
SCORE = Score(instructions="How frustrated is the customer?", criteria=["Calm", "Upset", "Angry"])
CHAT: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 8,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedEndpoints]:
    model = tmp_path_factory.mktemp("model") / f"{MODEL}.gguf"
    write_hybrid_model(model)
    with emulated_endpoints(tmp_path_factory.mktemp("emulator"), decision_model=model) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(endpoints: EmulatedEndpoints) -> Iterator[RunningGateway]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in endpoints.exports.items():
            environment.setenv(name, value)
        with running_gateway(
            decisions=SageMakerTarget(endpoints.decision, endpoints.aws.emulator.region),
            chat=SageMakerTarget(endpoints.chat, endpoints.aws.emulator.region),
            key=KEY,
        ) as running:
            yield running


@pytest.fixture
def typesafe(gateway: RunningGateway) -> Iterator[TypeSafeClient]:
    with typesafe_client(gateway) as client:
        yield client


def typesafe_client(gateway: RunningGateway, key: str = KEY) -> TypeSafeClient:
    return TypeSafeClient(api_key=key, base_url=gateway.url, timeout=PATIENCE)


def openai_client(gateway: RunningGateway, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(api_key=key, base_url=f"{gateway.url}/v1", timeout=PATIENCE, max_retries=0)


@pytest.fixture
def chat(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai_client(gateway) as client:
        yield client


# TypeSafe's SDK


def test_a_noul(typesafe: TypeSafeClient) -> None:
    answer = typesafe.system_one(state=TICKET, questions={"refund": NOUL})
    assert 0 < answer.nouls["refund"].noul < 1
    assert answer.usage.input_tokens
    assert answer.model == MODEL


def test_a_choice(typesafe: TypeSafeClient) -> None:
    choice = typesafe.system_one(state=TICKET, questions={"team": CHOICE}).choices["team"]
    assert choice.probabilities.keys() == {"billing", "technical", "sales"}
    assert math.isclose(sum(choice.probabilities.values()), 1)
    assert choice.choice == max(choice.probabilities, key=lambda name: choice.probabilities[name])


def test_a_score(typesafe: TypeSafeClient) -> None:
    score = typesafe.system_one(state=TICKET, questions={"anger": SCORE}).scores["anger"]
    expected = sum(int(level) * share for level, share in score.probabilities.items())
    assert math.isclose(score.score, expected)
    assert list(score.legend.values()) == ["Calm", "Upset", "Angry"]


def test_several_questions_are_answered_as_each_alone(typesafe: TypeSafeClient) -> None:
    questions: dict[str, Noul | Choice | Score] = {"refund": NOUL, "team": CHOICE, "anger": SCORE}
    together = typesafe.system_one(state={"body": TICKET}, questions=questions)
    for name, question in questions.items():
        alone = typesafe.system_one(state={"body": TICKET}, questions={name: question})
        for kind in ("nouls", "choices", "scores"):
            assert getattr(alone, kind).get(name) == getattr(together, kind).get(name)


def test_the_models(typesafe: TypeSafeClient) -> None:
    (model,) = typesafe.models.list().models
    assert model.name == MODEL


def test_a_question_that_is_wrong(typesafe: TypeSafeClient) -> None:
    with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError) as caught:
        typesafe.system_one(state=TICKET, questions={"q": {"type": "score", "criteria": ["x"]}})
    assert "questions.q.score.criteria: there must be at least 2, not 1" in str(caught.value)
    assert caught.value.request_id


def test_a_model_that_is_unknown(typesafe: TypeSafeClient) -> None:
    with pytest.raises(typesafe_sdk.TypeSafeBadRequestError, match="no-such-model"):
        typesafe.system_one(state=TICKET, questions={"refund": NOUL}, model="no-such-model")


def test_a_state_that_is_too_long(typesafe: TypeSafeClient) -> None:
    with pytest.raises(typesafe_sdk.TypeSafeAPIError, match="tokens") as caught:
        typesafe.system_one(state="word " * 20_000, questions={"refund": NOUL})
    assert caught.value.status == 413


def test_a_body_that_is_too_large(typesafe: TypeSafeClient) -> None:
    with pytest.raises(typesafe_sdk.TypeSafeAPIError, match="1048576") as caught:
        typesafe.system_one(state="x" * (1 << 20), questions={"refund": NOUL})
    assert caught.value.status == 413


def test_a_wrong_key(gateway: RunningGateway) -> None:
    with (
        typesafe_client(gateway, key="another") as client,
        pytest.raises(typesafe_sdk.TypeSafeAuthenticationError, match="key"),
    ):
        client.system_one(state=TICKET, questions={"refund": NOUL})


def test_an_endpoint_that_is_not_there(endpoints: EmulatedEndpoints) -> None:
    retry = typesafe_sdk.RetryPolicy(max_retries=0)
    region = endpoints.aws.emulator.region
    with pytest.MonkeyPatch.context() as environment:
        for name, value in endpoints.exports.items():
            environment.setenv(name, value)
        with (
            running_gateway(decisions=SageMakerTarget("no-such-endpoint", region)) as running,
            typesafe_client(running) as client,
            pytest.raises(typesafe_sdk.TypeSafeInternalServerError, match="not in service"),
        ):
            client.system_one(state=TICKET, questions={"refund": NOUL}, retry=retry)


# OpenAI's SDK


def test_a_chat_and_the_same_streamed(chat: openai.OpenAI) -> None:
    whole = chat.chat.completions.create(**CHAT)
    said = whole.choices[0].message.content
    assert said
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0

    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in chat.chat.completions.create(**CHAT, stream=True)
        if chunk.choices
    ]
    assert len(pieces) > 2
    assert "".join(pieces) == said


def test_a_stream_that_the_caller_leaves(chat: openai.OpenAI) -> None:
    with chat.chat.completions.create(**{**CHAT, "max_tokens": 200}, stream=True) as stream:
        next(iter(stream))
    assert chat.chat.completions.create(**CHAT).choices


def test_a_chat_that_is_wrong(chat: openai.OpenAI) -> None:
    for stream in (False, True):
        wrong: dict[str, Any] = {**CHAT, "messages": "hello", "stream": stream}
        with pytest.raises(openai.APIStatusError) as caught:
            chat.chat.completions.create(**wrong)
        assert 400 <= caught.value.status_code < 500
        assert caught.value.request_id


def test_a_wrong_key_for_chat(gateway: RunningGateway) -> None:
    with (
        openai_client(gateway, key="another") as client,
        pytest.raises(openai.AuthenticationError, match="not the gateway's key") as caught,
    ):
        client.chat.completions.create(**CHAT)
    assert caught.value.code == "wrong_key"


def test_the_chat_models(chat: openai.OpenAI, endpoints: EmulatedEndpoints) -> None:
    assert [model.id for model in chat.models.list()] == [endpoints.chat]


# The native API


def test_a_native_decision_and_the_same_choice_have_the_same_bits(
    gateway: RunningGateway, typesafe: TypeSafeClient
) -> None:
    options = {"yes": "They do", "no": "They do not"}
    decision = {
        "id": "q",
        "state": TICKET,
        "question": "Do they want a refund?",
        "options": [{"id": name, "description": text} for name, text in options.items()],
    }
    headers = {"authorization": f"Bearer {KEY}"}
    with gateway.client(headers=headers) as client:
        native = client.post("/invocations", json={"decision": decision}).json()["result"]
        wrong = client.post("/invocations", json={"decision": {}})
    choice = Choice(instructions="Do they want a refund?", criteria=options)
    answer = typesafe.system_one(state=TICKET, questions={"q": choice}).choices["q"]

    assert list(answer.probabilities.values()) == native["probabilities"]
    assert (wrong.status_code, wrong.json()["code"]) == (400, "missing_field")


# Conformance


@pytest.mark.timeout(900)
def test_the_gateway_conforms_to_system_one(gateway: RunningGateway, tmp_path: Path) -> None:
    """Every MUST and every SHOULD; those about the key, which the adapter leaves to it, too."""
    report = tmp_path / "report.json"
    jevcompat = Path(sys.executable).with_name("jevcompat")
    run = subprocess.run(
        [jevcompat, "test", gateway.url, "--key", KEY, "--timeout", "120", "--json", report],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    status = {item["id"]: item["status"] for item in json.loads(report.read_text())["results"]}
    # It is about a server without a key.
    assert {name for name, result in status.items() if result != "pass"} <= {
        "auth.ignored-when-off"
    }
    assert len(status) == 48


def test_the_health_of_a_gateway_does_not_ask_its_endpoints(gateway: RunningGateway) -> None:
    assert httpx.get(f"{gateway.url}/healthz", trust_env=False).json()["status"] == "ok"
