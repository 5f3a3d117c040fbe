"""System One through the client: the same bodies as the TypeSafe SDK sends, the same answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typesafe_sdk

from ballot import (
    Ballot,
    Choice,
    ChoiceAnswer,
    InvalidAnswer,
    InvalidRequest,
    Noul,
    NoulAnswer,
    Score,
    ScoreAnswer,
)
from tests.adapter_process import AdapterProcess
from tests.scripted_endpoint import WAYS, Step, client_of, scripted

STATE = {"subject": "Duplicate charge", "message": "I was charged twice. Please help."}
QUESTIONS = {
    "billing": Noul("Is this about billing?"),
    "spam": Noul(true="Unsolicited advertising."),
    "calm": Noul({"task": "Is it calm?"}, true="Calm.", false=["angry", "loud"]),
    "tone": Choice("What is the tone?", {"calm": None, "angry": {"means": "Loud."}}),
    "urgency": Score("How urgent is it?", ["Can wait", {"within": "a week"}, "Today"]),
}
SDK_QUESTIONS: dict[str, typesafe_sdk.Question] = {
    "billing": typesafe_sdk.Noul(instructions="Is this about billing?"),
    "spam": typesafe_sdk.Noul(criteria={"true": "Unsolicited advertising."}),
    "calm": typesafe_sdk.Noul(
        instructions={"task": "Is it calm?"},
        criteria={"true": "Calm.", "false": ["angry", "loud"]},
    ),
    "tone": typesafe_sdk.Choice(
        instructions="What is the tone?", criteria={"calm": None, "angry": {"means": "Loud."}}
    ),
    "urgency": typesafe_sdk.Score(
        instructions="How urgent is it?", criteria=["Can wait", {"within": "a week"}, "Today"]
    ),
}
ANSWER = {
    "model": "a-model",
    "answers": {
        "billing": {"type": "noul", "noul": 0.98, "x_logits": [1.0, 2.0]},
        "spam": {"type": "noul", "noul": 0.0},
        "calm": {"type": "noul", "noul": 1.0},
        "tone": {
            "type": "choice",
            "choice": "calm",
            "probabilities": {"calm": 0.75, "angry": 0.25},
            "confidence": 0.5,
        },
        "urgency": {
            "type": "score",
            "score": 1.7,
            "legend": {"0": "Can wait", "1": {"within": "a week"}, "2": "Today"},
            "probabilities": {"0": 0.1, "1": 0.1, "2": 0.8},
            "confidence": 0.75,
        },
    },
    "usage": {"input_tokens": 120, "output_tokens": 12},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_request_is_the_sdk_s_with_the_state_first(way: str) -> None:
    with scripted(Step(200, ANSWER), Step(200, ANSWER)) as endpoint:
        with client_of(endpoint.url, way) as client:
            client.systemone(STATE, QUESTIONS)
        with typesafe_sdk.TypeSafeClient(
            api_key="k", base_url=endpoint.url, compression=False
        ) as sdk:
            sdk.system_one(state=STATE, questions=SDK_QUESTIONS)

    ours, theirs = endpoint.received
    assert ours.json == without_nulls(theirs.json)
    assert list(ours.json["questions"]) == list(QUESTIONS)
    assert ours.body.startswith(b'{"state":{"subject":"Duplicate charge",')
    if way.startswith("http"):
        assert ours.path == theirs.path == "/v1/systemone"


def without_nulls(request: Any) -> Any:
    """Leave out the fields of questions that are null, which says as much as their absence."""
    for question in request["questions"].values():
        for name in [name for name, value in question.items() if value is None]:
            del question[name]
    return request


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_typed_as_the_sdk_reads_them(way: str) -> None:
    with scripted(Step(200, ANSWER), Step(200, ANSWER)) as endpoint:
        with client_of(endpoint.url, way) as client:
            answer = client.systemone(STATE, QUESTIONS, model="a-model")
        with typesafe_sdk.TypeSafeClient(api_key="k", base_url=endpoint.url) as sdk:
            expected = sdk.system_one(state=STATE, questions=SDK_QUESTIONS)

    assert endpoint.received[0].json["model"] == "a-model"
    assert answer.model == expected.model
    assert answer.answers["billing"] == NoulAnswer(expected.nouls["billing"].noul)
    assert answer.answers["tone"] == ChoiceAnswer(
        choice=expected.choices["tone"].choice,
        probabilities=expected.choices["tone"].probabilities,
        confidence=expected.choices["tone"].confidence,
    )
    assert answer.answers["urgency"] == ScoreAnswer(
        score=expected.scores["urgency"].score,
        legend=expected.scores["urgency"].legend,
        probabilities=expected.scores["urgency"].probabilities,
        confidence=expected.scores["urgency"].confidence,
    )
    assert answer.usage.input_tokens == expected.usage.input_tokens
    assert answer.usage.output_tokens == expected.usage.output_tokens
    assert answer.raw["answers"]["billing"]["x_logits"] == [1.0, 2.0]


def answer_with(**billing: Any) -> bytes:
    return json.dumps({**ANSWER, "answers": {"billing": billing}}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        json.dumps({**ANSWER, "answers": {}}).encode(),
        json.dumps({**ANSWER, "usage": None}).encode(),
        answer_with(),
        answer_with(type="box", box={}),
        answer_with(type="noul", noul=None),
        answer_with(type="choice", choice="x", probabilities={"x": "1"}, confidence=1.0),
        answer_with(
            type="score", score=1.0, legend={"low": "x"}, probabilities={"0": 1.0}, confidence=1.0
        ),
    ],
)
def test_an_answer_that_is_not_the_contract(body: bytes) -> None:
    with (
        scripted(Step(200, body)) as endpoint,
        Ballot(url=endpoint.url) as client,
        pytest.raises(InvalidAnswer),
    ):
        client.systemone(STATE, {"billing": Noul("Is this about billing?")})


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_the_adapter_answers_every_kind(adapter: AdapterProcess, way: str) -> None:
    with client_of(adapter.url, way) as client:
        answer = client.systemone(STATE, QUESTIONS)

    assert list(answer.answers) == list(QUESTIONS)
    noul, choice, score = (answer.answers[name] for name in ("billing", "tone", "urgency"))
    assert isinstance(noul, NoulAnswer)
    assert 0 <= noul.noul <= 1
    assert isinstance(choice, ChoiceAnswer)
    assert choice.probabilities.keys() == {"calm", "angry"}
    assert choice.choice == max(choice.probabilities, key=choice.probabilities.__getitem__)
    assert isinstance(score, ScoreAnswer)
    assert score.legend[1] == {"within": "a week"}
    expected = sum(level * p for level, p in score.probabilities.items())
    assert score.score == pytest.approx(expected)
    assert answer.usage.input_tokens > 0


def test_the_adapter_s_refusal_names_the_place(adapter: AdapterProcess) -> None:
    with Ballot(url=adapter.url) as client, pytest.raises(InvalidRequest) as caught:
        client.systemone(STATE, {"tone": Choice("What is the tone?", {"calm": None})})

    assert caught.value.field
    assert caught.value.field.startswith("questions.tone")
    assert caught.value.request_id
