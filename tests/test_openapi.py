"""The OpenAPI document against the adapter that serves it: what it promises is what happens."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.adapter_process import ROOT
from tests.test_bad_input import CONTENT_ENCODINGS, JSON, NOT_JSON, NOT_THE_SCHEMA, TOO_LARGE, Bad
from tests.test_systemone import CHOICE, EARLY, FIELDS, NOUL, SCORE, WRONG, Early, Wrong, body

# What JSON Schema cannot say: that ids are unique, and that 1.0 is not the number 1.
UNSAYABLE = {"decisions-same-id", "options-same-id", "orders-float"}
REFUSED_BY_SCHEMA = [row for row in NOT_THE_SCHEMA if row.name not in UNSAYABLE]


@pytest.fixture(scope="session")
def document(client: httpx.Client) -> dict[str, Any]:
    """What `/openapi.json` says."""
    response = client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    served: dict[str, Any] = response.json()
    return served


def validator(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    whole = {**schema, "components": document["components"]}
    Draft202012Validator.check_schema(whole)
    return Draft202012Validator(whole)


def answer_schema(
    document: dict[str, Any], status: int, path: str = "/invocations", method: str = "post"
) -> dict[str, Any]:
    """The schema that the document gives for an answer."""
    responses = document["paths"][path][method]["responses"]
    schema: dict[str, Any] = responses[str(status)]["content"]["application/json"]["schema"]
    return schema


def named(document: dict[str, Any], name: str) -> Draft202012Validator:
    return validator(document, {"$ref": f"#/components/schemas/{name}"})


ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=6), children, max_size=3)
    ),
    max_leaves=6,
)


def generated(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What `schema` allows, in short strings and arrays, so that it is soon scored.

    hypothesis-jsonschema 0.23.1 does not run with today's Hypothesis. What comes out of this is
    checked by jsonschema, and a keyword that this does not know is an error.
    """
    match schema.get("type"):
        case _ if "$ref" in schema:
            return generated(schemas[schema["$ref"].rpartition("/")[2]], schemas)
        case _ if "oneOf" in schema:
            return st.one_of([generated(form, schemas) for form in schema["oneOf"]])
        case _ if "enum" in schema:
            return st.sampled_from(schema["enum"])
        case None:
            assert schema.keys() <= {"description"}
            return ANY_JSON
        case "string":
            assert schema.keys() <= {"type", "minLength", "maxLength", "pattern", "description"}
            text = st.text(min_size=schema["minLength"], max_size=12)
            return text.filter(re.compile(schema["pattern"]).search)
        case "array":
            assert schema.keys() <= {"type", "items", "minItems", "maxItems", "description"}
            items = generated(schema["items"], schemas)
            # All arrays of a request hold things with ids, and those must be unique.
            return st.lists(
                items, min_size=schema["minItems"], max_size=3, unique_by=lambda item: item["id"]
            )
        case kind:
            assert kind == "object"
            assert schema.keys() == {"type", "properties", "required", "additionalProperties"}
            fields = {
                name: generated(field, schemas) for name, field in schema["properties"].items()
            }
            required = {name: fields.pop(name) for name in schema["required"]}
            return st.fixed_dictionaries(required, optional=fields)


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


def test_the_document_names_the_routes_and_their_methods(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    methods = {path: sorted(item) for path, item in document["paths"].items()}

    assert methods == {
        "/invocations": ["post"],
        "/v1/systemone": ["post"],
        "/v1/models": ["get"],
        "/ping": ["get"],
        "/metrics": ["get"],
        "/execution-parameters": ["get"],
        "/openapi.json": ["get"],
    }
    for path, (method,) in methods.items():
        assert client.request(method, path).status_code in (200, 415)


def test_the_limits_are_the_default_deployments(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    _, several = schemas["Request"]["oneOf"]

    assert several["properties"]["decisions"]["maxItems"] == 64
    assert schemas["Decision"]["properties"]["options"]["minItems"] == 2
    assert schemas["Decision"]["properties"]["options"]["maxItems"] == 255
    assert schemas["Decision"]["properties"]["id"]["maxLength"] == 256
    assert "255 options" in document["info"]["description"]


def test_as_many_options_as_it_says_are_taken(client: httpx.Client) -> None:
    def ask(count: int) -> dict[str, Any]:
        options = [{"id": f"o{index}", "description": "x"} for index in range(count)]
        decision = {"id": "d", "state": "word " * 4096, "question": "q?", "options": options}
        answer: dict[str, Any] = client.post("/invocations", json={"decision": decision}).json()
        return answer

    # Counted as tokens, 255 have passed as options; that they are scored, test_scoring.py shows.
    assert ask(255)["code"] == "too_many_tokens"
    assert ask(256)["code"] == "too_many_options"
    assert ask(256)["error"].endswith("has 256; this endpoint takes at most 255")


@pytest.mark.parametrize("example", ["support-route.json", "shared-state.json"])
def test_the_examples_and_their_answers_fit(
    client: httpx.Client, document: dict[str, Any], example: str
) -> None:
    request = json.loads((ROOT / "examples" / example).read_text())
    response = client.post("/invocations", json=request)

    named(document, "Request").validate(request)
    assert response.status_code == 200
    validator(document, answer_schema(document, 200)).validate(response.json())


def test_what_the_schema_allows_is_scored(client: httpx.Client, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    answers = validator(document, answer_schema(document, 200))
    forms = set()

    @settings(max_examples=15, deadline=None)
    @given(request=generated(schemas["Request"], schemas))
    def accepted(request: Any) -> None:
        asked = request["decisions"] if "decisions" in request else [request["decision"]]
        named(document, "Request").validate(request)
        response = client.post("/invocations", content=json.dumps(request), headers=JSON)

        assert response.status_code == 200, response.text
        answer = response.json()
        answers.validate(answer)
        results = answer["results"] if "decisions" in request else [answer["result"]]
        assert [result["id"] for result in results] == [decision["id"] for decision in asked]
        for decision, result in zip(asked, results, strict=True):
            ids = [option["id"] for option in decision["options"]]
            assert result["option_ids"] == ids
            assert len(result["probabilities"]) == len(ids)
        forms.add("decision" in request)

    accepted()
    assert forms == {True, False}


@pytest.mark.parametrize("row", REFUSED_BY_SCHEMA, ids=[row.name for row in REFUSED_BY_SCHEMA])
def test_what_the_adapter_refuses_the_schema_refuses(document: dict[str, Any], row: Bad) -> None:
    assert not named(document, "Request").is_valid(json.loads(row.body))


@pytest.mark.parametrize(
    "row",
    [
        Bad("no-type", 415, "unsupported_media_type", headers={}),
        *NOT_JSON[:3],
        *NOT_THE_SCHEMA[::10],
        *TOO_LARGE[:3],
        *CONTENT_ENCODINGS[:2],
    ],
    ids=lambda row: row.name,
)
def test_errors_fit_the_schema_of_their_status(
    client: httpx.Client, document: dict[str, Any], row: Bad
) -> None:
    response = client.post("/invocations", content=row.body, headers=row.headers)

    assert response.status_code == row.status
    validator(document, answer_schema(document, row.status)).validate(response.json())


def test_the_types_of_json_lines_are_those_that_are_taken(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    route = document["paths"]["/invocations"]["post"]
    one, *many = route["requestBody"]["content"]
    assert one == "application/json"
    assert len(many) == 3
    for media_type in many:
        response = client.post("/invocations", content=b"\n", headers={"content-type": media_type})
        assert response.status_code == 200
        assert response.headers["content-type"] in route["responses"]["200"]["content"]


def test_the_execution_parameters_fit(client: httpx.Client, document: dict[str, Any]) -> None:
    schema = answer_schema(document, 200, "/execution-parameters", "get")
    validator(document, schema).validate(client.get("/execution-parameters").json())


@pytest.mark.parametrize("path", ["/v1/systemone", "/invocations"])
def test_system_one_answers_and_errors_fit(
    client: httpx.Client, document: dict[str, Any], path: str
) -> None:
    requests = {
        200: body(NOUL, CHOICE, SCORE),
        400: {**body(NOUL), "model": "another"},
        413: body(NOUL, state="word " * 5000),
        422: body(NOUL, {}),
    }
    asked = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for status, request in requests.items():
        response = client.post(path, json=request)

        assert response.status_code == status
        assert validator(document, asked).is_valid(request) == (status != 422)
        validator(document, answer_schema(document, status, path)).validate(response.json())
    assert not validator(document, asked).is_valid([])
    both = {**body(NOUL), "decision": None}
    assert validator(document, asked).is_valid(both) == (path == "/v1/systemone")


def test_the_models_fit(client: httpx.Client, document: dict[str, Any]) -> None:
    schema = answer_schema(document, 200, "/v1/models", "get")
    validator(document, schema).validate(client.get("/v1/models").json())


@pytest.mark.parametrize(
    "row",
    [row for row in EARLY if row.method == "POST" and row.status < 420],
    ids=lambda row: row.name,
)
def test_early_system_one_errors_fit(
    client: httpx.Client, document: dict[str, Any], row: Early
) -> None:
    response = client.post(row.path, content=row.content, headers=dict(row.headers))

    assert response.status_code == row.status
    named(document, "SystemOneError").validate(response.json())


# A choice whose option has neither a name nor a description.
@pytest.mark.parametrize(
    "row", [row for row in WRONG if row.name != "choice-nameless"], ids=lambda row: row.name
)
def test_wrong_system_one_requests_are_refused_by_the_schema(
    document: dict[str, Any], row: Wrong
) -> None:
    assert not named(document, "SystemOneRequest").is_valid(row.body)


def test_the_schema_allows_the_questions_that_are_answered(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    schema = named(document, "SystemOneRequest")
    seen = set()

    @settings(max_examples=100, deadline=None)
    @given(fields=FIELDS)
    @example(fields={"type": "noul", "instructions": "Is it?"})
    @example(fields={"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": "c"}})
    @example(fields={"type": "score", "instructions": "How much?", "criteria": ["less", "more"]})
    def answered_if_allowed(fields: dict[str, Any]) -> None:
        criteria = fields.get("criteria")
        assume(not isinstance(criteria, dict) or all(name.strip() for name in criteria))
        request = {"state": "s", "questions": {"q": fields}}
        content = json.dumps(request).encode()
        response = client.post("/v1/systemone", content=content, headers=JSON)

        allowed = schema.is_valid(request)
        assert response.status_code == (200 if allowed else 422)
        seen.add(fields["type"] if allowed else "refused")

    answered_if_allowed()
    assert seen == {"noul", "choice", "score", "refused"}


def test_the_schemas_are_closed(document: dict[str, Any], support_route: dict[str, Any]) -> None:
    request = named(document, "Request")
    assert request.is_valid(support_route)
    for place in ("request", "decision", "option"):
        changed = copy.deepcopy(support_route)
        decision = changed["decision"]
        places = {"request": changed, "decision": decision, "option": decision["options"][0]}
        places[place]["x"] = 1
        assert not request.is_valid(changed)


@given(value=st.none() | st.booleans() | st.integers() | st.text(max_size=5))
def test_no_scalar_is_an_answer(document: dict[str, Any], value: Any) -> None:
    assert not validator(document, answer_schema(document, 200)).is_valid(value)
    assert not named(document, "Error").is_valid(value)
