"""`decide` and `decide_many`: what is sent, how it is split, and what a live adapter answers."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from ballot import (
    AsyncBallot,
    Ballot,
    BallotError,
    DeadlineExceeded,
    Decision,
    InvalidAnswer,
    InvalidRequest,
    Option,
    Request,
    Scoring,
    Unavailable,
)
from ballot.calls import split
from tests.adapter_process import DEMO_MODEL, AdapterProcess
from tests.scripted_endpoint import (
    AWS_REQUEST_ID,
    DECISION,
    GOOD,
    RESULT,
    WAYS,
    Step,
    client_of,
    scripted,
)

OPTIONS = (Option("a", "x"), Option("b", "y"))


def decision(id: str, state: Any = "s") -> Decision:
    return Decision(id=id, state=state, question="q?", options=OPTIONS)


def results(*ids: str) -> Step:
    return Step(200, {"results": [{**RESULT, "id": id} for id in ids], "timing": {}})


def several(count: int, state: Callable[[int], Any] = str) -> list[Decision]:
    return [decision(f"d{place}", state(place)) for place in range(count)]


# -- What is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_body_begins_with_the_state(way: str) -> None:
    with scripted(GOOD) as endpoint, client_of(endpoint.url, way) as client:
        client.decide(decision("d", state={"text": "Zoë, 日本", "n": [1, None]}))

    request = endpoint.received[0]
    assert request.body.decode() == (
        '{"decision":{"state":{"text":"Zoë, 日本","n":[1,null]},"id":"d","question":"q?",'
        '"options":[{"id":"a","description":"x"},{"id":"b","description":"y"}]}}'
    )
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize("way", WAYS)
def test_where_requests_go(way: str) -> None:
    with scripted(GOOD) as endpoint, client_of(endpoint.url, way) as client:
        client.decide(DECISION)

    path = "/endpoints/decide/invocations" if "sagemaker" in way else "/invocations"
    assert [request.path for request in endpoint.received] == [path]


@pytest.mark.parametrize("way", WAYS)
def test_a_decision_in_its_parts(way: str) -> None:
    result = {**RESULT, "id": "decision"}
    with (
        scripted(*[Step(200, {"result": result})] * 2) as endpoint,
        client_of(endpoint.url, way) as client,
    ):
        scoring = Scoring(orders=2, layout="criterion_first")
        client.decide(state=None, question="q?", options={"a": "x", "b": "y"}, scoring=scoring)
        client.decide(state=None, question="q?", options=OPTIONS, scoring=Scoring())

    options = [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}]
    asked = {"state": None, "id": "decision", "question": "q?", "options": options}
    first, second = (request.json for request in endpoint.received)
    assert first == {
        "decision": asked,
        "scoring": {"orders": 2, "layout": "criterion_first"},
    }
    assert second == {"decision": asked, "scoring": {}}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"state": "s"},
        {"state": "s", "question": "q?"},
        {"question": "q?", "options": {"a": "x"}},
        {"decision": DECISION, "state": None},
        {"decision": DECISION, "question": "q?"},
    ],
)
def test_neither_a_decision_nor_its_parts(arguments: Any) -> None:
    with Ballot(url="http://127.0.0.1:9") as client, pytest.raises(TypeError, match="decision"):
        client.decide(**arguments)


@pytest.mark.parametrize("target", [{}, {"url": "http://127.0.0.1:9", "endpoint_name": "decide"}])
@pytest.mark.parametrize("client", [Ballot, AsyncBallot])
def test_a_client_has_one_target(target: Any, client: Any) -> None:
    with pytest.raises(TypeError, match="endpoint_name, url and transport"):
        client(**target)


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> Any:
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    return value


UNWRITABLE = {
    "NaN": (math.nan, "invalid_number"),
    "an infinity": ({"x": -math.inf}, "invalid_number"),
    "5000 digits": (10**5000, "invalid_number"),
    "half a pair": ("\ud800", "invalid_string"),
    "half a pair in a key": ({"\udfff": 1}, "invalid_string"),
    "an object": (object(), "wrong_type"),
    "bytes": (b"bytes", "wrong_type"),
    "a set": ({"x": {1, 2}}, "wrong_type"),
    "a key that is no text": ({(1, 2): "x"}, "wrong_type"),
    "a list in itself": (circular(), "too_deep"),
    "a deep list": (deep(), "too_deep"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_state_that_json_cannot_hold_is_not_sent(name: str) -> None:
    state, code = UNWRITABLE[name]
    with scripted() as endpoint, Ballot(url=endpoint.url) as client:
        with pytest.raises(InvalidRequest) as alone:
            client.decide(decision("d", state))
        with pytest.raises(InvalidRequest) as among:
            client.decide_many([DECISION, decision("e", state)])

    assert (alone.value.code, among.value.code) == (code, code)
    assert endpoint.received == []


def test_mappings_and_sequences_of_other_types_are_json_too() -> None:
    state: Mapping[str, Sequence[int]] = MappingProxyType({"range": range(3), "tuple": (1, 2)})
    with scripted(GOOD) as endpoint, Ballot(url=endpoint.url) as client:
        client.decide(decision("d", state))

    assert endpoint.received[0].json["decision"]["state"] == {"range": [0, 1, 2], "tuple": [1, 2]}


# -- decide_many ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_many_decisions_go_in_requests_of_at_most_64_and_come_back_in_order(way: str) -> None:
    asked = several(150, lambda place: f"state {place % 3}")
    ids = [f"d{place}" for rest in range(3) for place in range(rest, 150, 3)]
    steps = [results(*ids[:50]), results(*ids[50:100]), results(*ids[100:])]
    with scripted(*steps) as endpoint, client_of(endpoint.url, way) as client:
        answered = client.decide_many(asked)

    sent = [request.json["decisions"] for request in endpoint.received]
    assert [result.id for result in answered] == [f"d{place}" for place in range(150)]
    assert [{item["state"] for item in items} for items in sent] == [
        {"state 0"},
        {"state 1"},
        {"state 2"},
    ]
    assert endpoint.received[0].body.startswith(b'{"decisions":[{"state":"state 0",')


@given(
    states=st.lists(
        st.sampled_from(["a", "b", "c" * 300, {"k": 1}, {"k": 1.0}, 1, True]), max_size=60
    ),
    per_request=st.integers(1, 20),
    body_bytes=st.integers(1, 3000),
)
def test_a_split_keeps_every_decision_and_its_limits(
    states: list[Any], per_request: int, body_bytes: int
) -> None:
    decisions = [decision(f"d{place}", state) for place, state in enumerate(states)]

    requests = split(decisions, per_request=per_request, body_bytes=body_bytes)

    sizes = [len(json.dumps(d.as_json(), separators=(",", ":"))) for d in decisions]
    texts = [json.dumps(state) for state in states]
    flat = [place for places in requests for place in places]
    assert sorted(flat) == list(range(len(decisions)))
    for places in requests:
        assert 1 <= len(places) <= per_request
        assert len(places) == 1 or sum(sizes[place] for place in places) <= body_bytes
    # Decisions of equal states are neighbours, in their order.
    assert [texts[place] for place in flat] == sorted(
        (texts[place] for place in flat), key=texts.index
    )
    for text in texts:
        alike = [place for place in flat if texts[place] == text]
        assert alike == sorted(alike)
        if len(alike) <= per_request and sum(sizes[place] for place in alike) <= body_bytes:
            assert sum(alike[0] in places for places in requests) == 1
            assert any(set(alike) <= set(places) for places in requests)


@given(count=st.integers(0, 300), per_request=st.integers(1, 64))
def test_a_split_makes_no_more_requests_than_needed_for_one_state(
    count: int, per_request: int
) -> None:
    requests = split(several(count, lambda _: "s"), per_request=per_request)

    assert len(requests) == math.ceil(count / per_request)


@pytest.mark.parametrize("way", WAYS)
def test_no_decisions_take_no_request(way: str) -> None:
    with scripted() as endpoint, client_of(endpoint.url, way) as client:
        assert client.decide_many([]) == []

    assert endpoint.received == []


@pytest.mark.parametrize("way", WAYS)
def test_equal_ids_are_refused_whichever_requests_they_would_be_in(way: str) -> None:
    asked = [*several(99), decision("d7", "another")]
    with (
        scripted() as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(InvalidRequest) as caught,
    ):
        client.decide_many(asked)

    assert (caught.value.code, caught.value.field) == ("duplicate_id", "decisions[99].id")
    assert endpoint.received == []


@pytest.mark.parametrize("way", WAYS)
def test_an_error_names_the_decision_by_its_place_among_all(way: str) -> None:
    error = {
        "error": "decisions[1].question is empty",
        "code": "empty_value",
        "retryable": False,
        "field": "decisions[1].question",
        "request_id": "r-2",
    }
    asked = [decision("a", "x"), decision("b", "y"), decision("c", "x"), decision("d", "y")]
    with (
        scripted(results("a", "c"), Step(400, error)) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(InvalidRequest) as caught,
    ):
        client.decide_many(asked, per_request=2)

    # The second request holds "b" and "d".
    assert caught.value.field == "decisions[3].question"
    assert str(caught.value) == caught.value.message == "decisions[3].question is empty"


def test_no_request_can_have_less_than_one_decision() -> None:
    with Ballot(url="http://127.0.0.1:9") as client, pytest.raises(ValueError, match="per_request"):
        client.decide_many([DECISION], per_request=0)


# -- What comes back ------------------------------------------------------------------------------


def result_with(**changes: Any) -> Step:
    return Step(200, {"result": {**RESULT, **changes}})


BAD_ANSWERS = {
    "not JSON": Step(200, b"<html>"),
    "nothing": Step(200, b""),
    "an array": Step(200, []),
    "no result": Step(200, {}),
    "results": results("d"),
    "no probabilities": result_with(probabilities=None),
    "too few": result_with(probabilities=[1.0]),
    "a text": result_with(probabilities=["0.5", 0.5]),
    "true": result_with(probabilities=[True, 0.5]),
    "NaN": Step(200, json.dumps({"result": {**RESULT, "allowed_token_mass": math.nan}}).encode()),
    "a huge number": result_with(allowed_token_mass=10**400),
    "half a token": result_with(input_tokens=1.5),
    "no model": result_with(model=None),
    "another id": result_with(id="e"),
    "other options": result_with(option_ids=["b", "a"]),
    "bad orders": result_with(orders=[{}], orders_agree=True),
    "orders that say nothing": result_with(orders=[RESULT, RESULT], orders_agree=None),
    "deep": Step(200, b"[" * 100_000),
}


@pytest.mark.parametrize("way", ["http", "sagemaker"])
@pytest.mark.parametrize("step", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_answer_that_is_not_the_contract(way: str, step: Step) -> None:
    with (
        scripted(step) as endpoint,
        client_of(endpoint.url, way) as client,
        pytest.raises(InvalidAnswer) as caught,
    ):
        client.decide(DECISION)

    assert (caught.value.code, caught.value.status) == ("invalid_answer", 200)
    assert caught.value.request_id == AWS_REQUEST_ID
    assert not caught.value.retryable
    assert len(endpoint.received) == 1


def test_results_that_are_too_few() -> None:
    with (
        scripted(results("a")) as endpoint,
        Ballot(url=endpoint.url) as client,
        pytest.raises(InvalidAnswer, match="2 decisions got 1"),
    ):
        client.decide_many([decision("a"), decision("b")])


def test_a_field_that_this_client_does_not_know_is_kept() -> None:
    with scripted(result_with(new={"x": 1})) as endpoint, Ballot(url=endpoint.url) as client:
        assert client.decide(DECISION).raw["new"] == {"x": 1}


def test_of_equal_options_the_one_declared_first_is_the_best() -> None:
    step = result_with(probabilities=[0.5, 0.5])
    with scripted(step) as endpoint, Ballot(url=endpoint.url) as client:
        result = client.decide(DECISION)

    assert (result.best, result.margin) == ("a", 0)
    assert result.by_option == {"a": 0.5, "b": 0.5}
    with pytest.raises(KeyError):
        result.probability_of("c")


def test_errors_can_be_pickled() -> None:
    last = Unavailable("busy", code="busy", status=503, request_id="r", retryable=True)
    last.retry_after = 2.0
    error = DeadlineExceeded("late", code="budget_spent", status=503, field="f")
    error.last = last

    copied = pickle.loads(pickle.dumps(error))

    assert vars(copied)["code"] == "budget_spent"
    assert str(copied) == "late"
    assert copied.field == "f"
    assert copied.last.retry_after == 2.0


# -- Against the adapter --------------------------------------------------------------------------


def contract(client: httpx.Client, name: str) -> dict[str, Any]:
    """The adapter's own schema of one of its objects."""
    document = client.get("/openapi.json").json()
    return {"$ref": f"#/components/schemas/{name}", "components": document["components"]}


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_the_adapter_s_answer_is_read_in_full(
    adapter: AdapterProcess, client: httpx.Client, support_route: dict[str, Any], way: str
) -> None:
    raw = client.post("/invocations", json=support_route).json()["result"]
    with client_of(adapter.url, way) as ballot:
        result = ballot.decide(Decision.from_json(support_route["decision"]))

    Draft202012Validator(contract(client, "Result")).validate(dict(result.raw))
    assert dict(result.raw) | {"timing": 0, "cached_tokens": 0} == raw | {
        "timing": 0,
        "cached_tokens": 0,
    }
    assert result.by_option == dict(zip(raw["option_ids"], raw["probabilities"], strict=True))
    assert result.probability_of("billing") == raw["probabilities"][1]
    assert result.best == max(result.by_option, key=result.by_option.__getitem__)
    assert result.option_logits == tuple(raw["option_logits"])
    assert result.answer_token_ids == (49, 50, 51)
    assert result.model.file == DEMO_MODEL.name
    assert result.model.context_tokens == 4096
    assert result.model.backends == ("CPU",)
    assert (result.orders, result.orders_agree) == ((), None)
    assert result.timing.total_seconds >= result.timing.forward_seconds > 0
    first, second, _ = sorted(raw["probabilities"], reverse=True)
    assert result.margin == first - second


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_two_orders_are_read(
    adapter: AdapterProcess, client: httpx.Client, support_route: dict[str, Any], way: str
) -> None:
    asked = {**support_route, "scoring": {"orders": 2}}
    raw = client.post("/invocations", json=asked).json()["result"]
    with client_of(adapter.url, way) as ballot:
        result = ballot.decide(
            Decision.from_json(support_route["decision"]), scoring=Scoring(orders=2)
        )

    assert result.orders_agree == raw["orders_agree"]
    assert [list(order.probabilities) for order in result.orders] == [
        order["probabilities"] for order in raw["orders"]
    ]
    assert [order.prompt_sha256 for order in result.orders] == [
        order["prompt_sha256"] for order in raw["orders"]
    ]


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_many_decisions_have_the_bits_that_each_has_alone(
    adapter: AdapterProcess, way: str
) -> None:
    states: list[Any] = [
        "The invoice is wrong.",
        {"text": "The app crashes."},
        "The invoice is wrong.",
    ]
    options = {"billing": "About money.", "technical": "About the product."}
    asked = [
        Decision(f"d{place}", state, question, [Option(*item) for item in options.items()])
        for place, (state, question) in enumerate(
            [(state, question) for question in ("Which queue?", "Who?") for state in states]
        )
    ]
    with client_of(adapter.url, way) as ballot:
        together = ballot.decide_many(asked, per_request=4)
        alone = [ballot.decide(one) for one in asked]

    assert [result.id for result in together] == [one.id for one in asked]
    assert [result.option_logits for result in together] == [
        result.option_logits for result in alone
    ]


@pytest.mark.parametrize("way", ["http", "http-async"])
def test_the_adapter_s_refusals_are_errors_with_all_they_say(
    adapter: AdapterProcess, way: str
) -> None:
    with client_of(adapter.url, way) as ballot:
        with pytest.raises(InvalidRequest) as empty:
            ballot.decide(state="s", question=" ", options={"a": "x", "b": "y"})
        with pytest.raises(InvalidRequest) as long:
            ballot.decide(state="word " * 9000, question="q?", options={"a": "x", "b": "y"})
        with pytest.raises(InvalidRequest) as second:
            ballot.decide_many([DECISION, Decision("e", "s", "", OPTIONS)])

    assert (empty.value.status, empty.value.code) == (400, "empty_value")
    assert empty.value.field == "decision.question"
    assert empty.value.request_id
    assert (long.value.status, long.value.code) == (413, "too_many_tokens")
    assert "4096" in long.value.message
    assert second.value.field == "decisions[1].question"


# -- Requests read from JSON ----------------------------------------------------------------------


def test_requests_are_read_and_written_back(
    support_route: dict[str, Any], shared_state: dict[str, Any]
) -> None:
    scored = {**support_route, "scoring": {"orders": 2}}

    assert Request.from_json(support_route).single
    assert not Request.from_json(shared_state).single
    for request in (support_route, shared_state, scored):
        assert Request.from_json(copy.deepcopy(request)).as_json() == request


RAW = {
    "id": "d",
    "state": None,
    "question": "q?",
    "options": [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}],
}


@pytest.mark.parametrize(
    "request_",
    [
        [],
        {},
        {"decision": RAW, "decisions": [RAW]},
        {"decision": RAW, "extra": 1},
        {"decision": []},
        {"decision": {**RAW, "questoin": "q?"}},
        {"decision": {key: value for key, value in RAW.items() if key != "state"}},
        {"decision": {**RAW, "question": 1}},
        {"decision": {**RAW, "options": {}}},
        {"decision": {**RAW, "options": ["a", "b"]}},
        {"decision": {**RAW, "options": [{"id": "a"}, {"id": "b"}]}},
        {"decisions": {}},
        {"decisions": [RAW, {**RAW, "id": None}]},
        {"decision": RAW, "scoring": 2},
        {"decision": RAW, "scoring": {"order": 2}},
    ],
    ids=json.dumps,
)
def test_what_is_no_request_is_refused_as_the_adapter_does(
    client: httpx.Client, request_: Any
) -> None:
    answer = client.post("/invocations", json=request_).json()

    with pytest.raises(BallotError) as caught:
        Request.from_json(request_)

    assert isinstance(caught.value, InvalidRequest)
    assert (caught.value.code, caught.value.field) == (answer["code"], answer["field"])
