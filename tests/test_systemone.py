"""The System One API of a live adapter, against its facts, its SDK's models and jevcompat's.

`jevcompat.validate` is another implementation of what an answer must look like, its confidence
formulas included; the SDK's own models are generated from the official OpenAPI document.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from jevcompat import validate as jev  # type: ignore[import-untyped]
from jevcompat.client import Response as JevResponse  # type: ignore[import-untyped]
from jevcompat.client import parse_json
from typesafe_sdk._schemas import models as official

from adapter.decision import Scoring
from adapter.scorer import ModelIdentity
from adapter.systemone import (
    SystemOneRequest,
    choice_confidence,
    model_name,
    parse_request,
    score_confidence,
)
from adapter.wire import Limits, Terms
from tests.adapter_process import DEMO_MODEL, AdapterProcess
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model
from tests.test_load import open_request, read_response
from tests.wire import check_error, check_system_one_error, from_httpx

PATHS = ["/v1/systemone", "/invocations"]
JSON = {"content-type": "application/json"}
NAME = "SmolLM2-135M-Instruct.Q4_1"
STATE = {"subject": "Charged twice", "text": "I want my money back. \u4f60\u597d \U0001f600"}
NOUL: dict[str, Any] = {"type": "noul", "instructions": "Does the customer want money back?"}
CHOICE: dict[str, Any] = {
    "type": "choice",
    "instructions": "Which team should handle this?",
    "criteria": {"billing": "Payments and refunds.", "tech": "Bugs and outages.", "sales": None},
}
SCORE: dict[str, Any] = {
    "type": "score",
    "instructions": "How angry is the customer?",
    "criteria": ["Calm", {"label": "Annoyed", "signs": [1, None]}, "Furious"],
}
# ChatML around the reference prompt's JSON, written out: nothing of the adapter's is used here.
PROMPT = (
    "<|im_start|>system\n"
    "Apply the supplied criterion to the supplied evidence. Choose exactly one listed option. "
    "Respond with only its uppercase letter, with no explanation or reasoning.<|im_end|>\n"
    "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
)


def body(*questions: dict[str, Any], state: Any = STATE, **more: Any) -> dict[str, Any]:
    named = {f"q{index}": question for index, question in enumerate(questions)}
    return {"model": "jev-latest", "state": state, "questions": named, **more}


def ask(client: httpx.Client, request: Any, path: str = "/v1/systemone") -> dict[str, Any]:
    """Ask, check the answer by both oracles, and return it."""
    response = client.post(path, json=request)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    official.SystemOneResponse.model_validate(answer)
    assert jev.validate_success(request, as_jev(response)) == []
    return answer


def as_jev(response: httpx.Response) -> Any:
    headers = {name.lower(): value for name, value in response.headers.items()}
    data, error, nonfinite = parse_json(response.content)
    return JevResponse(response.status_code, headers, response.content, 0.0, data, error, nonfinite)


def only(client: httpx.Client, question: dict[str, Any], state: Any = STATE) -> dict[str, Any]:
    answer: dict[str, Any] = ask(client, body(question, state=state))["answers"]["q0"]
    return answer


def prompt_hash(state: Any, criterion: str, *descriptions: str) -> str:
    options = [
        {"letter": letter, "description": text}
        for letter, text in zip("ABCDEFGHIJ", descriptions, strict=False)
    ]
    message = {"evidence": state, "criterion": criterion, "options": options}
    prompt = PROMPT % json.dumps(message, ensure_ascii=False)
    return hashlib.sha256(prompt.encode()).hexdigest()


# What an answer says.


@pytest.mark.parametrize("path", PATHS)
def test_one_request_asks_questions_of_every_type(client: httpx.Client, path: str) -> None:
    answer = ask(client, body(NOUL, CHOICE, SCORE), path)
    noul, choice, score = answer["answers"].values()

    assert list(answer) == ["model", "answers", "usage", "x_model", "x_timing"]
    assert list(answer["answers"]) == ["q0", "q1", "q2"]
    assert answer["model"] == NAME
    assert answer["x_model"]["sha256"] == hashlib.sha256(DEMO_MODEL.read_bytes()).hexdigest()
    assert (noul["type"], choice["type"], score["type"]) == ("noul", "choice", "score")
    assert "confidence" not in noul
    assert list(choice["probabilities"]) == ["billing", "tech", "sales"]
    assert choice["choice"] == max(choice["probabilities"], key=choice["probabilities"].get)
    assert score["legend"] == {"0": "Calm", "1": SCORE["criteria"][1], "2": "Furious"}
    assert list(score["probabilities"]) == ["0", "1", "2"]
    levels = score["probabilities"].items()
    assert score["score"] == pytest.approx(sum(int(level) * p for level, p in levels))
    for item in (choice, score):
        assert sum(item["probabilities"].values()) == pytest.approx(1, abs=1e-12)


def test_tokens_are_counted_and_none_are_generated(client: httpx.Client) -> None:
    answer = ask(client, body(NOUL, CHOICE, SCORE))
    answers = answer["answers"].values()

    assert answer["usage"] == {
        "input_tokens": sum(item["x_input_tokens"] for item in answers),
        "output_tokens": 0,
        "x_cached_tokens": sum(item["x_cached_tokens"] for item in answers),
    }
    assert all(item["x_input_tokens"] > 60 for item in answers)


def test_what_an_answer_has_beyond_the_api(client: httpx.Client) -> None:
    choice = only(client, CHOICE)

    assert [name for name in choice if name.startswith("x_")] == [
        "x_option_logits",
        "x_allowed_token_mass",
        "x_input_tokens",
        "x_cached_tokens",
        "x_prompt_sha256",
        "x_prompt_version",
        "x_calibration",
    ]
    assert choice["x_prompt_version"] == "direct-options-v1"
    assert 0 < choice["x_allowed_token_mass"] <= 1
    logits, shares = choice["x_option_logits"], list(choice["probabilities"].values())
    assert [shares.index(share) for share in sorted(shares)] == [
        logits.index(logit) for logit in sorted(logits)
    ]


def test_whole_numbers_are_written_as_floats(client: httpx.Client) -> None:
    response = client.post("/v1/systemone", json=body(NOUL, CHOICE, SCORE))
    answers = json.loads(response.text, parse_int=lambda text: f"int {text}")["answers"].values()

    written = [item for answer in answers for item in floats_of(answer)]
    assert len(written) == 1 + (3 + 1) + (3 + 1 + 1)
    assert all(isinstance(number, float) for number in written)


def floats_of(answer: dict[str, Any]) -> list[Any]:
    single = [answer[name] for name in ("noul", "score", "confidence") if name in answer]
    return [*single, *answer.get("probabilities", {}).values()]


# The formulas.


@pytest.mark.parametrize(
    ("probabilities", "choice", "score"),
    [
        # (0.8 - 1/3) / (2/3); the distances are 2 * 0.1 and 1 * 0.1, in units of 2/3.
        ((0.1, 0.1, 0.8), 0.7, 0.55),
        # The levels' mean distance from the middle is 1/2, of which half is used up.
        ((0.75, 0.25), 0.5, 0.5),
        ((0.5, 0.5), 0.0, 0.0),
        ((0.0, 1.0, 0.0), 1.0, 1.0),
        # Two far ends: the distance from the first, 4/2, is over the unit, 1.2.
        ((0.5, 0.0, 0.0, 0.0, 0.5), 0.375, 0.0),
    ],
)
def test_confidences_worked_out_by_hand(
    probabilities: tuple[float, ...], choice: float, score: float
) -> None:
    assert choice_confidence(probabilities) == pytest.approx(choice)
    assert score_confidence(probabilities) == pytest.approx(score)


@given(weights=st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=255))
def test_confidences_are_those_of_another_implementation(weights: list[float]) -> None:
    total = sum(weights)
    shares = tuple(weight / total for weight in weights) if total > 0 else (1 / 2, 1 / 2)

    for ours, theirs in (
        (choice_confidence(shares), jev.choice_confidence(list(shares))),
        (score_confidence(shares), jev.score_confidence(list(shares))),
    ):
        assert 0 <= ours <= 1
        assert ours == pytest.approx(theirs, abs=1e-9)


# What the model is asked.


@pytest.mark.parametrize(
    ("question", "criterion", "options"),
    [
        (NOUL, "Does the customer want money back?", ["Yes", "No"]),
        ({**NOUL, "criteria": None}, "Does the customer want money back?", ["Yes", "No"]),
        ({**NOUL, "criteria": {}}, "Does the customer want money back?", ["Yes", "No"]),
        (
            {**NOUL, "criteria": {"false": "Anything else.", "true": "A refund."}},
            "Does the customer want money back?",
            ["Yes: A refund.", "No: Anything else."],
        ),
        (
            {**NOUL, "criteria": {"true": {"b": ["refund", 1], "a": None}}},
            "Does the customer want money back?",
            ['Yes: {"b": ["refund", 1], "a": null}', "No"],
        ),
        (
            {"type": "noul", "criteria": {"true": None, "false": ["a question", "\u4e16"]}},
            "Which option fits the evidence best?",
            ["Yes", 'No: ["a question", "\u4e16"]'],
        ),
        (
            {"type": "noul", "instructions": " ", "criteria": {"true": "A threat.", "false": ""}},
            "Which option fits the evidence best?",
            ["Yes: A threat.", "No"],
        ),
        (
            CHOICE,
            "Which team should handle this?",
            ["Payments and refunds.", "Bugs and outages.", "sales"],
        ),
        (
            {"type": "choice", "criteria": {" b ": "", "a": {"z": 1, "y": 2.0}}},
            "Which option fits the evidence best?",
            [" b ", '{"z": 1, "y": 2.0}'],
        ),
        (
            {
                **CHOICE,
                "instructions": ["Route it.", {"to": "one"}],
                "criteria": {"x": None, "": "y"},
            },
            '["Route it.", {"to": "one"}]',
            ["x", "y"],
        ),
        (
            SCORE,
            "How angry is the customer?",
            ["Calm", '{"label": "Annoyed", "signs": [1, null]}', "Furious"],
        ),
        (
            {"type": "score", "instructions": None, "criteria": [[1], "two"]},
            "Which option fits the evidence best?",
            ["[1]", "two"],
        ),
    ],
    ids=[
        "noul",
        "noul-null",
        "noul-empty",
        "noul-described",
        "noul-structured",
        "noul-false-only",
        "noul-blank",
        "choice",
        "choice-uninstructed",
        "choice-structured",
        "score",
        "score-uninstructed",
    ],
)
def test_the_prompt_of_a_question(
    client: httpx.Client, question: dict[str, Any], criterion: str, options: list[str]
) -> None:
    assert only(client, question)["x_prompt_sha256"] == prompt_hash(STATE, criterion, *options)


@pytest.mark.parametrize("state", ["", "text", {}, [], ["a", {"b": None}], {"z": 1, "a": [2.5]}])
def test_the_state_is_shown_as_it_was_sent(client: httpx.Client, state: Any) -> None:
    answer = only(client, NOUL, state)

    expected = prompt_hash(state, NOUL["instructions"], "Yes", "No")
    assert answer["x_prompt_sha256"] == expected


# The same bits.


def native_result(client: httpx.Client, question: str, *descriptions: str) -> dict[str, Any]:
    options = [{"id": f"o{index}", "description": text} for index, text in enumerate(descriptions)]
    decision = {"id": "d", "state": STATE, "question": question, "options": options}
    response = client.post("/invocations", json={"decision": decision})
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()["result"]
    return result


def assert_same_bits(answer: dict[str, Any], result: dict[str, Any]) -> None:
    assert list(answer["probabilities"].values()) == result["probabilities"]
    assert answer["x_option_logits"] == result["option_logits"]
    assert answer["x_allowed_token_mass"] == result["allowed_token_mass"]
    assert answer["x_prompt_sha256"] == result["prompt_sha256"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("count", [2, 3, 26, 40])
def test_a_choice_is_the_native_decision_with_its_descriptions(
    client: httpx.Client, path: str, count: int
) -> None:
    texts = [f"Tickets of queue {index} \U0001f600" for index in range(count)]
    criteria = {f"queue {index}": text for index, text in enumerate(texts)}
    question = {"type": "choice", "instructions": "Which queue?", "criteria": criteria}

    result = native_result(client, "Which queue?", *texts)
    answer = ask(client, body(question), path)["answers"]["q0"]
    assert_same_bits(answer, result)


def test_a_score_is_the_native_decision_with_its_levels(client: httpx.Client) -> None:
    result = native_result(client, "How angry?", "Calm", "Annoyed", "Furious")
    question = {
        "type": "score",
        "instructions": "How angry?",
        "criteria": ["Calm", "Annoyed", "Furious"],
    }

    assert_same_bits(only(client, question), result)


def test_a_noul_is_the_native_decision_between_yes_and_no(client: httpx.Client) -> None:
    result = native_result(client, NOUL["instructions"], "Yes", "No")

    assert only(client, NOUL)["noul"] == result["probabilities"][0]


def numbers(answer: dict[str, Any]) -> list[Any]:
    varying = ("x_cached_tokens",)
    return [value for name, value in answer.items() if name not in varying]


def test_answers_do_not_depend_on_other_questions_their_order_or_their_ids(
    client: httpx.Client,
) -> None:
    # Long enough for the state to be a decode of its own, so that questions share it.
    state = "The customer writes: " + "I was charged twice and want my money back. " * 12
    questions = [NOUL, CHOICE, SCORE, {**NOUL, "instructions": "Is it urgent?"}]
    alone = [numbers(only(client, question, state)) for question in questions]
    chance = random.Random(5)

    for _ in range(4):
        order = chance.sample(range(4), k=chance.randint(2, 4))
        named = {f"{chance.random()} \U0001f3af": index for index in order}
        request = {"state": state, "questions": {key: questions[at] for key, at in named.items()}}
        answers = ask(client, request)["answers"]

        assert list(answers) == list(named)
        for key, index in named.items():
            assert numbers(answers[key]) == alone[index]


# Which model, and how much of it.


def test_the_served_model_has_its_own_name_and_its_files_date(tmp_path: Path) -> None:
    path = tmp_path / "some-model-Q8_0.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    noon = 1_700_000_000  # 14 November 2023, 22:13 UTC
    os.utime(path, (noon, noon))
    with AdapterProcess(BALLOT_GGUF_PATH=str(path), BALLOT_MODEL_ALIASES="off") as adapter:
        client = adapter.wait_ready().client()
        with client:
            response = client.get("/v1/models")
            own = client.post("/v1/systemone", json={**body(NOUL, state="s"), "model": path.stem})
            alias = client.post("/v1/systemone", json=body(NOUL, state="s"))

    listed = official.ModelMetadataList.model_validate(response.json()).models
    assert [(item.name, item.release_date) for item in listed] == [(path.stem, "2023-11-14")]
    assert path.name in listed[0].description
    assert response.headers["x-typesafe-request-id"] == response.headers["x-request-id"]
    assert (own.status_code, own.json()["model"]) == (200, "some-model-Q8_0")
    assert alias.status_code == 400
    assert alias.json()["detail"] == {
        "error_type": "unknown_model",
        "message": "there is no model 'jev-latest' here; this one is 'some-model-Q8_0'",
        "x_field": None,
    }


@pytest.mark.parametrize("name", ["jev-latest", "jev-preview", "jev-1.13.0", NAME])
def test_names_that_the_model_answers_to(client: httpx.Client, name: str) -> None:
    assert ask(client, {**body(NOUL), "model": name})["model"] == NAME


def test_the_model_need_not_be_named(client: httpx.Client) -> None:
    request = body(NOUL)
    del request["model"]

    assert ask(client, request, "/invocations")["model"] == NAME


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3.5-4B-Q4_K_M.gguf", "Qwen3.5-4B-Q4_K_M"),
        ("big-Q4_K_M-00001-of-00005.gguf", "big-Q4_K_M"),
        ("odd.gguf.gguf", "odd.gguf"),
        ("model.bin", "model.bin"),
    ],
)
def test_a_models_name_is_its_files(file: str, name: str) -> None:
    assert model_name(identity(file)) == name


def identity(file: str = "m.gguf") -> ModelIdentity:
    return ModelIdentity(file, "0" * 64, "llama", "Q8_0", "q8_0", 4096, 1, 0, ("CPU",), "1")


def terms(*, decisions: int = 64, options: int = 255) -> Terms:
    return Terms(Limits(decisions, options), Scoring(), identity(), model_aliases=True)


def parsed(*questions: dict[str, Any], **limits: int) -> SystemOneRequest:
    return parse_request(body(*questions), terms(**limits))


def test_as_many_options_as_the_api_allows_are_taken() -> None:
    criteria = {f"o{index}": None for index in range(255)}
    request = parsed({"type": "choice", "criteria": criteria})

    assert [option.id for option in request.decisions[0].options] == list(criteria)
    assert len(parsed({"type": "score", "criteria": ["x"] * 10}).decisions[0].options) == 10


def test_the_settings_say_how_many_questions_and_how_they_are_scored(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    with AdapterProcess(
        BALLOT_GGUF_PATH=str(path),
        BALLOT_MAX_DECISIONS="2",
        BALLOT_LAYOUT="criterion_first",
        BALLOT_ORDERS="2",
    ) as adapter:
        client = adapter.wait_ready().client()
        with client:
            choice = {"type": "choice", "instructions": "q", "criteria": {"a": "x", "b": "y"}}
            native = client.post(
                "/invocations",
                json={
                    "decision": {
                        "id": "d",
                        "state": "s",
                        "question": "q",
                        "options": [
                            {"id": "a", "description": "x"},
                            {"id": "b", "description": "y"},
                        ],
                    }
                },
            ).json()["result"]
            answer = only(client, choice, "s")
            many = client.post("/v1/systemone", json=body(NOUL, NOUL, NOUL))

    assert_same_bits(answer, native)
    assert answer["x_prompt_version"] == "criterion-first-v1"
    assert answer["x_orders_agree"] == native["orders_agree"]
    assert many.status_code == 422
    assert many.json()["detail"] == [
        {
            "loc": ["body", "questions"],
            "msg": "there are 3; this endpoint takes at most 2",
            "type": "too_many_decisions",
        }
    ]


# Bad input.


@dataclass(frozen=True)
class Wrong:
    """A body that is not answered, where the error points, and the error's type."""

    name: str
    body: Any
    loc: list[str | int]
    type: str


def replaced(**fields: Any) -> dict[str, Any]:
    return {**body(NOUL), **fields}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in body(NOUL).items() if key != name}


def noul(**fields: Any) -> dict[str, Any]:
    return body({**NOUL, **fields})


def choice(criteria: Any, **fields: Any) -> dict[str, Any]:
    return body({**CHOICE, "criteria": criteria, **fields})


def score(criteria: Any, **fields: Any) -> dict[str, Any]:
    return body({**SCORE, "criteria": criteria, **fields})


QUESTION: list[str | int] = ["questions", "q0"]
NOUL_AT = [*QUESTION, "noul"]
CHOICE_AT = [*QUESTION, "choice", "criteria"]
SCORE_AT = [*QUESTION, "score", "criteria"]
WRONG = [
    Wrong("array", [], [], "wrong_type"),
    Wrong("null", None, [], "wrong_type"),
    Wrong("no-state", without("state"), ["state"], "missing_field"),
    Wrong("state-null", replaced(state=None), ["state"], "wrong_type"),
    Wrong("state-number", replaced(state=1), ["state"], "wrong_type"),
    Wrong("state-boolean", replaced(state=False), ["state"], "wrong_type"),
    Wrong("model-null", replaced(model=None), ["model"], "wrong_type"),
    Wrong("model-number", replaced(model=1), ["model"], "wrong_type"),
    Wrong("assets", replaced(assets={"i": {"type": "image"}}), ["assets"], "unsupported_value"),
    Wrong("assets-empty", replaced(assets={}), ["assets"], "unsupported_value"),
    Wrong("no-questions", without("questions"), ["questions"], "missing_field"),
    Wrong("questions-null", replaced(questions=None), ["questions"], "wrong_type"),
    Wrong("questions-array", replaced(questions=[NOUL]), ["questions"], "wrong_type"),
    Wrong("questions-none", replaced(questions={}), ["questions"], "too_few_items"),
    Wrong("questions-65", body(*[NOUL] * 65), ["questions"], "too_many_decisions"),
    Wrong("id-empty", replaced(questions={"": NOUL}), ["questions", ""], "empty_value"),
    Wrong("id-long", replaced(questions={"i" * 999: 1}), ["questions", "i" * 200], "wrong_type"),
    Wrong("question-null", replaced(questions={"q0": None}), QUESTION, "wrong_type"),
    Wrong("question-string", replaced(questions={"q0": "Is it?"}), QUESTION, "wrong_type"),
    Wrong("question-empty", body({}), [*QUESTION, "type"], "missing_field"),
    Wrong("type-null", noul(type=None), [*QUESTION, "type"], "unsupported_value"),
    Wrong("type-boolean", noul(type="boolean"), [*QUESTION, "type"], "unsupported_value"),
    Wrong("type-box", noul(type="box"), [*QUESTION, "type"], "unsupported_value"),
    Wrong("type-object", noul(type={}), [*QUESTION, "type"], "unsupported_value"),
    Wrong("instructions-number", noul(instructions=1), [*NOUL_AT, "instructions"], "wrong_type"),
    Wrong(
        "instructions-boolean", noul(instructions=False), [*NOUL_AT, "instructions"], "wrong_type"
    ),
    Wrong("noul-alone", body({"type": "noul"}), [*NOUL_AT, "instructions"], "missing_field"),
    Wrong(
        "noul-undescribed",
        noul(instructions=None, criteria={"true": None, "false": " "}),
        [*NOUL_AT, "instructions"],
        "missing_field",
    ),
    Wrong("noul-array", noul(criteria=[]), [*NOUL_AT, "criteria"], "wrong_type"),
    Wrong("noul-string", noul(criteria=""), [*NOUL_AT, "criteria"], "wrong_type"),
    Wrong("noul-false", noul(criteria=False), [*NOUL_AT, "criteria"], "wrong_type"),
    Wrong(
        "noul-other-side",
        noul(criteria={"yes": "y"}),
        [*NOUL_AT, "criteria", "yes"],
        "unknown_field",
    ),
    Wrong("noul-number", noul(criteria={"true": 1}), [*NOUL_AT, "criteria", "true"], "wrong_type"),
    Wrong("choice-without", body({"type": "choice"}), CHOICE_AT, "missing_field"),
    Wrong("choice-null", choice(None), CHOICE_AT, "wrong_type"),
    Wrong("choice-array", choice(["a", "b"]), CHOICE_AT, "wrong_type"),
    Wrong("choice-none", choice({}), CHOICE_AT, "too_few_items"),
    Wrong("choice-one", choice({"a": "x"}), CHOICE_AT, "too_few_items"),
    Wrong(
        "choice-256", choice({f"o{at}": None for at in range(256)}), CHOICE_AT, "too_many_options"
    ),
    Wrong("choice-number", choice({"a": "x", "b": 2}), [*CHOICE_AT, "b"], "wrong_type"),
    Wrong("choice-nameless", choice({"a": "x", " ": None}), [*CHOICE_AT, " "], "empty_value"),
    Wrong("score-without", body({"type": "score"}), SCORE_AT, "missing_field"),
    Wrong("score-map", score({"0": "Calm", "1": "Angry"}), SCORE_AT, "wrong_type"),
    Wrong("score-string", score("Calm"), SCORE_AT, "wrong_type"),
    Wrong("score-none", score([]), SCORE_AT, "too_few_items"),
    Wrong("score-one", score(["Calm"]), SCORE_AT, "too_few_items"),
    Wrong("score-11", score(["x"] * 11), SCORE_AT, "too_many_options"),
    Wrong("score-null", score(["Calm", None]), [*SCORE_AT, 1], "wrong_type"),
    Wrong("score-number", score(["Calm", 2]), [*SCORE_AT, 1], "wrong_type"),
    Wrong("score-blank", score(["Calm", "\t"]), [*SCORE_AT, 1], "empty_value"),
    Wrong(
        "second",
        body(NOUL, {**SCORE, "criteria": 1}),
        ["questions", "q1", "score", "criteria"],
        "wrong_type",
    ),
]


@pytest.mark.parametrize("row", WRONG, ids=[row.name for row in WRONG])
def test_a_wrong_body_is_told_where_it_is_wrong(client: httpx.Client, row: Wrong) -> None:
    content = json.dumps(row.body).encode()
    response = client.post("/v1/systemone", content=content, headers=JSON)
    error = check_system_one_error(from_httpx(response))

    assert response.status_code == 422
    (detail,) = error["detail"]
    assert (detail["loc"], detail["type"]) == (["body", *row.loc], row.type)
    official.HTTPValidationError.model_validate(response.json())
    assert jev.validate_validation_error(as_jev(response)) == []


@pytest.mark.parametrize(
    "row",
    [row for row in WRONG if isinstance(row.body, dict) and "questions" in row.body],
    ids=lambda row: row.name,
)
def test_invocations_says_the_same_of_it(client: httpx.Client, row: Wrong) -> None:
    direct, invoked = (client.post(path, json=row.body) for path in PATHS)

    assert invoked.status_code == direct.status_code == 422
    assert invoked.json()["detail"] == direct.json()["detail"]
    assert invoked.headers["x-typesafe-request-id"] == invoked.json()["x_request_id"]


def test_an_unknown_model_is_no_validation_error(client: httpx.Client) -> None:
    for path in PATHS:
        response = client.post(path, json=replaced(model="gpt-5"))
        error = check_system_one_error(from_httpx(response))

        assert response.status_code == 400
        assert error["detail"]["error_type"] == "unknown_model"
        assert jev.validate_error_shape(as_jev(response)) == []


def test_a_prompt_too_long_names_its_question(client: httpx.Client) -> None:
    long = {**NOUL, "instructions": "word " * 5000}
    response = client.post("/v1/systemone", json=body(NOUL, long, state="s"))
    detail = check_system_one_error(from_httpx(response))["detail"]

    assert (response.status_code, detail["error_type"]) == (413, "too_many_tokens")
    assert detail["x_field"] == "questions.q1"
    assert "the limit is 4096" in detail["message"]


@pytest.mark.parametrize("other", ["decision", "decisions"])
def test_a_body_in_both_formats_is_in_neither(client: httpx.Client, other: str) -> None:
    response = client.post("/invocations", json={**body(NOUL), other: None})
    error = check_error(from_httpx(response))

    assert (response.status_code, error["code"]) == (400, "ambiguous_request")
    assert error["error"] == "give decision, decisions or questions: one of them"
    assert client.post("/v1/systemone", json={**body(NOUL), other: None}).status_code == 200


def test_what_the_api_does_not_know_is_ignored(client: httpx.Client) -> None:
    plain = only(client, NOUL)
    request = body({**NOUL, "weight": 2, "x_note": []}, x_trace="t", seed=7, assets=None)

    assert numbers(ask(client, request)["answers"]["q0"]) == numbers(plain)


@dataclass(frozen=True)
class Early:
    """A request that is refused before its body is a System One body."""

    name: str
    status: int
    type: str
    content: bytes = b"{}"
    method: str = "POST"
    path: str = "/v1/systemone"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


EARLY = [
    Early("not-json", 422, "invalid_json", b'{"model": "jev-latest", "state"'),
    Early("empty", 422, "invalid_json", b""),
    Early("nan", 422, "invalid_number", b'{"state": NaN}'),
    Early("twice", 422, "duplicate_key", b'{"questions": {"a": 1, "a": 2}}'),
    Early("surrogate", 422, "invalid_string", rb'{"state": "\ud800"}'),
    Early("deep", 422, "too_deep", b"[" * 65),
    Early("latin-1", 422, "invalid_encoding", b'{"state": "\xe9"}'),
    Early(
        "no-zstd",
        422,
        "invalid_encoding",
        headers=(("content-type", "application/json"), ("content-encoding", "zstd")),
    ),
    Early(
        "brotli",
        415,
        "unsupported_encoding",
        headers=(("content-type", "application/json"), ("content-encoding", "br")),
    ),
    Early("no-type", 415, "unsupported_media_type", headers=()),
    Early(
        "multipart",
        415,
        "unsupported_media_type",
        headers=(("content-type", "multipart/form-data; boundary=x"),),
    ),
    Early("large", 413, "body_too_large", b" " * 1_048_577),
    Early("get", 405, "method_not_allowed", method="GET"),
    Early("delete", 405, "method_not_allowed", method="DELETE"),
    Early("post-models", 405, "method_not_allowed", path="/v1/models"),
    Early("slash", 404, "not_found", path="/v1/systemone/"),
    Early("other", 404, "not_found", path="/v1/complete"),
]


@pytest.mark.parametrize("row", EARLY, ids=[row.name for row in EARLY])
def test_early_errors_have_the_apis_shape_too(client: httpx.Client, row: Early) -> None:
    response = client.request(row.method, row.path, content=row.content, headers=dict(row.headers))
    detail = check_system_one_error(from_httpx(response))["detail"]

    assert response.status_code == row.status
    if row.status == 422:
        assert (detail[0]["loc"], detail[0]["type"]) == (["body"], row.type)
        assert jev.validate_validation_error(as_jev(response)) == []
    else:
        assert detail["error_type"] == row.type
        assert jev.validate_error_shape(as_jev(response)) == []
    if row.status == 405:
        allowed = {"/v1/systemone": "POST", "/v1/models": "GET, HEAD"}
        assert response.headers["allow"] == allowed[row.path]


def test_on_invocations_what_is_not_known_to_be_system_one_is_not(client: httpx.Client) -> None:
    for content in (b'{"questions": {"q0": ', b'["questions"]', b'{"question": {}}'):
        response = client.post("/invocations", content=content, headers=JSON)

        assert response.status_code == 400
        check_error(from_httpx(response))
        assert "x-typesafe-request-id" not in response.headers


def test_every_answer_carries_the_request_id_under_both_names(client: httpx.Client) -> None:
    headers = {"x-request-id": "mine-1"}
    answers = [
        *[client.post(path, json=body(NOUL), headers=headers) for path in PATHS],
        client.post("/v1/systemone", json={}, headers=headers),
        client.get("/v1/models", headers=headers),
        client.get("/v1/none", headers=headers),
    ]

    for response in answers:
        assert response.headers["x-request-id"] == "mine-1"
        assert response.headers["x-typesafe-request-id"] == "mine-1"


def test_compressed_bodies_are_read(client: httpx.Client) -> None:
    plain = json.dumps(body(NOUL)).encode()
    headers = {**JSON, "content-encoding": "zstd"}
    response = client.post("/v1/systemone", content=zstandard.compress(plain), headers=headers)

    assert response.status_code == 200
    assert numbers(response.json()["answers"]["q0"]) == numbers(only(client, NOUL))


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[tuple[AdapterProcess, Callable[[], None]]]:
    """An adapter that loads until told to go on: its chat template comes through a pipe."""
    pipe = tmp_path / "template.jinja"
    os.mkfifo(pipe)
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model, chat_template=None)
    with AdapterProcess(BALLOT_GGUF_PATH=str(model), BALLOT_CHAT_TEMPLATE=str(pipe)) as adapter:

        def go_on() -> None:
            pipe.write_text(BYTES_TEMPLATE)
            adapter.wait_ready()

        yield adapter, go_on


def test_loading_is_told_in_the_apis_shape(
    loading: tuple[AdapterProcess, Callable[[], None]],
) -> None:
    adapter, go_on = loading
    with adapter.client() as client:
        refused = [
            client.post("/v1/systemone", json=body(NOUL, state="s")),
            client.get("/v1/models"),
        ]
        go_on()
        later = client.post("/v1/systemone", json=body(NOUL, state="s"))

    for response in refused:
        error = check_system_one_error(from_httpx(response))
        assert (response.status_code, error["detail"]["error_type"]) == (503, "loading")
        assert response.headers["retry-after"] == "5"
        assert error["x_retryable"] is True
    assert later.status_code == 200


def test_busy_is_told_in_the_apis_shape(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model, chat_template=BYTES_TEMPLATE)
    running = AdapterProcess(
        BALLOT_GGUF_PATH=str(model),
        BALLOT_MAX_QUEUE="0",
        BALLOT_BODY_TIMEOUT_SECONDS="3600",
    )
    with (
        running.wait_ready() as adapter,
        adapter.client() as client,
        # A body that never ends holds the only permit.
        open_request(adapter.port, b"{", content_length=10_000),
    ):
        while (busy := client.post("/v1/systemone", json=body(NOUL))).status_code != 503:
            pass
        with open_request(adapter.port, b"", content_length=10) as invoked:
            status, headers, native = read_response(invoked)

    error = check_system_one_error(from_httpx(busy))
    assert error["detail"]["error_type"] == "busy"
    assert int(busy.headers["retry-after"]) >= 1
    # Nothing of this body was read, so nobody knows its format.
    assert (status, native["code"]) == (503, "busy")
    assert "x-typesafe-request-id" not in headers


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
WORDS = st.none() | st.text(max_size=6)
CRITERIA = {
    "noul": st.dictionaries(st.sampled_from(["true", "false"]), WORDS),
    "choice": st.dictionaries(st.text(max_size=6), WORDS, max_size=4),
    "score": st.lists(st.text(max_size=6), max_size=4),
    "box": st.none(),
}
# Questions as they should be, or nearly so, and whatever else has a type.
FIELDS = st.sampled_from(sorted(CRITERIA)).flatmap(
    lambda kind: st.fixed_dictionaries(
        {"type": st.just(kind), "criteria": CRITERIA[kind]}, optional={"instructions": WORDS}
    )
) | st.fixed_dictionaries(
    {"type": st.sampled_from(sorted(CRITERIA)) | VALUES},
    optional={"instructions": VALUES, "criteria": VALUES},
)


@settings(max_examples=100, deadline=None)
@given(questions=st.dictionaries(st.text(max_size=8), FIELDS | VALUES, max_size=3) | VALUES)
def test_any_questions_are_answered_or_refused(client: httpx.Client, questions: Any) -> None:
    request = {"state": "s", "questions": questions}
    content = json.dumps(request).encode()
    response = client.post("/v1/systemone", content=content, headers=JSON)

    if response.status_code == 200:
        assert jev.validate_success(request, as_jev(response)) == []
        official.SystemOneResponse.model_validate(response.json())
    else:
        assert response.status_code == 422
        check_system_one_error(from_httpx(response))


def test_scorings_are_counted_and_logged_by_route(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    shutil.copy(DEMO_MODEL, model)
    with AdapterProcess(BALLOT_GGUF_PATH=str(model)).wait_ready() as adapter:
        with adapter.client() as client:
            client.post("/v1/systemone", json=body(NOUL))
            client.post("/v1/systemone", json={})
            metrics = client.get("/metrics").text
        assert adapter.terminate() == 0

    assert 'ballot_requests_total{outcome="ok",route="/v1/systemone"} 1.0' in metrics
    assert 'ballot_requests_total{outcome="missing_field",route="/v1/systemone"} 1.0' in metrics
    records = [json.loads(line) for line in adapter.lines]
    logged = [record for record in records if record["event"] == "request"]
    assert [(record["route"], record["status"]) for record in logged] == [
        ("/v1/systemone", 200),
        ("/v1/systemone", 422),
    ]
