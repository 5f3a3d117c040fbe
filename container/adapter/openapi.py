"""`/openapi.json`: the wire contract of this very adapter, with its model's own limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapter import systemone_schema
from adapter.decision import LAYOUTS, ORDERS, Json
from adapter.json_lines import MEDIA_TYPE, MEDIA_TYPES
from adapter.json_schema import LINE, closed, ref
from adapter.native import MAX_ID_CHARACTERS, MIN_OPTIONS
from adapter.tokens import MAX_OPTIONS
from adapter.wire import Limits

_ERRORS = {
    "400": "The request is wrong: `field` and `error` say where and how; or no such model.",
    "408": "The body did not arrive in time.",
    "413": "Too many bytes, or too many tokens.",
    "415": "A content type or encoding that is not read.",
    "500": "The decision could not be scored.",
    "503": "Loading, busy, draining or late: `Retry-After` says when to try again.",
}


def document(limits: Limits) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ballot scoring adapter",
            "version": "1",
            "description": (
                "Declared options in, a probability per option out. This model's vocabulary has "
                f"labels for {limits.options} options in one decision (never more than "
                f"{MAX_OPTIONS})."
            ),
        },
        "paths": {
            "/invocations": {"post": _invocations()},
            "/v1/systemone": {"post": _systemone()},
            "/v1/models": {"get": _models()},
            "/ping": {"get": _ping()},
            "/metrics": {"get": _text("Prometheus metrics.", "text/plain")},
            "/execution-parameters": {"get": _execution_parameters()},
            "/openapi.json": {"get": _text("This document.", "application/json")},
        },
        "components": {"schemas": {**_schemas(limits), **systemone_schema.schemas(limits)}},
    }


def _invocations() -> dict[str, Any]:
    native = {"anyOf": [{"required": ["decision"]}, {"required": ["decisions"]}]}
    questions = {"allOf": [ref("SystemOneRequest"), {"not": native}]}
    return {
        "operationId": "invoke",
        "summary": "Score one decision, or several at once, in either wire format; or many bodies.",
        "requestBody": _body({"oneOf": [ref("Request"), questions]}, _lines("Line", MEDIA_TYPES)),
        "responses": {
            "200": _json(
                "`result` for a `decision`, `results` for `decisions`, `answers` for `questions`; "
                "or a line for each line.",
                {"oneOf": [ref("Single"), ref("Several"), ref("SystemOneAnswers")]},
                _lines("AnswerLine", [MEDIA_TYPE]),
            ),
            **_errors({"oneOf": [ref("Error"), ref("SystemOneError")]}),
        },
    }


def _systemone() -> dict[str, Any]:
    return {
        "operationId": "systemone",
        "summary": "Answer questions about one state: TypeSafe's System One API.",
        "requestBody": _body(ref("SystemOneRequest")),
        "responses": {
            "200": _json("One answer for each question.", ref("SystemOneAnswers")),
            **_errors(ref("SystemOneError")),
        },
    }


def _models() -> dict[str, Any]:
    return {
        "operationId": "models",
        "summary": "The model that answers System One requests.",
        "responses": {
            "200": _json("One model.", ref("SystemOneModels")),
            "503": _json(_ERRORS["503"], ref("SystemOneError")),
        },
    }


def _ping() -> dict[str, Any]:
    return {
        "operationId": "ping",
        "summary": "Health.",
        "responses": {
            "200": {"description": "A self-test decision has scored; requests are taken."},
            "503": {"description": "Loading, draining, or not healthy."},
        },
    }


def _execution_parameters() -> dict[str, Any]:
    schema = closed(
        {
            "MaxConcurrentTransforms": {"type": "integer", "minimum": 1},
            "BatchStrategy": {"const": "MULTI_RECORD"},
            "MaxPayloadInMB": {"type": "integer", "minimum": 1},
        }
    )
    return {
        "operationId": "executionParameters",
        "summary": "How SageMaker's batch transform is to send requests.",
        "responses": {"200": _json("What suits this adapter.", schema)},
    }


def _text(summary: str, media_type: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {"200": {"description": summary, "content": {media_type: {}}}},
    }


def _body(schema: dict[str, Any], others: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"required": True, "content": _content(schema, others)}


def _json(
    description: str, schema: dict[str, Any], others: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"description": description, "content": _content(schema, others)}


def _content(schema: dict[str, Any], others: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a body may be: JSON of `schema`, or one of the `others` by their types."""
    return {"application/json": {"schema": schema}, **(others or {})}


def _lines(name: str, media_types: Sequence[str]) -> dict[str, Any]:
    """Return JSON Lines under `media_types`; OpenAPI 3.1 has no word for the lines' own schema."""
    described = f"One `#/components/schemas/{name}` a line, each ended by a line feed."
    return {
        media_type: {"schema": {"type": "string", "description": described}}
        for media_type in media_types
    }


def _errors(schema: dict[str, Any]) -> dict[str, Any]:
    invalid = _json("A System One request is wrong: `detail` says where.", ref("SystemOneInvalid"))
    return {**{status: _json(text, schema) for status, text in _ERRORS.items()}, "422": invalid}


def _schemas(limits: Limits) -> dict[str, Any]:
    return {
        "Request": _request(limits),
        "Decision": _decision(limits),
        "Option": closed(
            {"id": _identifier("Told back, never shown to the model."), "description": _prose()}
        ),
        "Scoring": closed(
            {
                "orders": {"enum": list(ORDERS)},
                "layout": {"enum": list(LAYOUTS)},
            },
            required=[],
        ),
        "Single": closed({"result": ref("Result")}),
        "Several": closed(
            {"results": {"type": "array", "items": ref("Result")}, "timing": ref("Timing")}
        ),
        "Result": _result(),
        "Order": closed(_scores()),
        "Calibration": _calibration(),
        "Model": _model(),
        "Timing": closed(
            {
                "queue_seconds": {"type": "number"},
                "forward_seconds": {"type": "number"},
                "total_seconds": {"type": "number"},
            }
        ),
        "Error": closed(_error()),
        "ErrorLine": _error_line(),
        "Line": {"oneOf": [ref("Request"), ref("SystemOneRequest")]},
        "AnswerLine": {
            "oneOf": [
                ref("Single"),
                ref("Several"),
                ref("SystemOneAnswers"),
                ref("ErrorLine"),
                ref("SystemOneInvalidLine"),
                ref("SystemOneErrorLine"),
            ]
        },
    }


def _error() -> dict[str, Any]:
    return {
        "error": {"type": "string"},
        "code": {"type": "string"},
        "retryable": {"type": "boolean"},
        "field": {"type": ["string", "null"]},
        "request_id": {"type": "string"},
    }


def _error_line() -> dict[str, Any]:
    always = {**_error(), **LINE}
    identifier = _identifier("The id of the line's decision, where that can be read.")
    return closed({**always, "id": identifier}, list(always))


def _request(limits: Limits) -> dict[str, Any]:
    several = {
        "type": "array",
        "items": ref("Decision"),
        "minItems": 1,
        "maxItems": limits.decisions,
        "description": "Their ids are unique.",
    }
    return {
        "oneOf": [
            closed({"decision": ref("Decision"), "scoring": ref("Scoring")}, ["decision"]),
            closed({"decisions": several, "scoring": ref("Scoring")}, ["decisions"]),
        ]
    }


def _decision(limits: Limits) -> dict[str, Any]:
    return closed(
        {
            "id": _identifier("Told back with the result."),
            "state": {"description": "The evidence: any JSON value."},
            "question": _prose(),
            "options": {
                "type": "array",
                "items": ref("Option"),
                "minItems": MIN_OPTIONS,
                "maxItems": limits.options,
                "description": "Their ids are unique.",
            },
        }
    )


def _result() -> dict[str, Any]:
    always: dict[str, Any] = {
        "id": {"type": "string"},
        "option_ids": {"type": "array", "items": {"type": "string"}},
        **_scores(),
        "prompt_version": {"type": "string"},
        "calibration": ref("Calibration"),
        "model": ref("Model"),
        "readout": {"type": "string"},
        "timing": ref("Timing"),
    }
    with_orders = {
        "orders": {
            "type": "array",
            "items": ref("Order"),
            "minItems": 2,
            "maxItems": 2,
            "description": "With `orders: 2`: the scores in the declared and the reversed order.",
        },
        "orders_agree": {
            "type": "boolean",
            "description": "With `orders: 2`: whether both orders put the same option first.",
        },
    }
    return closed({**always, **with_orders}, list(always))


def _scores() -> dict[str, Any]:
    """Return the fields that a result and each of its orders have, in the request's order."""
    numbers = {"type": "array", "items": {"type": "number"}}
    return {
        "probabilities": numbers,
        "option_logits": numbers,
        "answer_token_ids": {"type": "array", "items": {"type": "integer"}},
        "input_tokens": {"type": "integer"},
        "cached_tokens": {"type": "integer"},
        "allowed_token_mass": {"type": "number", "minimum": 0, "maximum": 1},
        "prompt_sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    }


def _calibration() -> dict[str, Any]:
    applied = closed(
        {
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "temperature": {"type": "number", "exclusiveMinimum": 0},
            "position_prior": {
                "type": "boolean",
                "description": "Whether what the model favours each place by was taken off.",
            },
        }
    )
    return {
        **applied,
        "type": ["object", "null"],
        "description": (
            "The calibration file behind the probabilities, and what it divided the logits by: 1 "
            "where it has nothing for such a decision. Null without one, or where the layout or "
            "the number of orders is not the one that it was fitted for."
        ),
    }


def _model() -> dict[str, Any]:
    return closed(
        {
            "file": {"type": "string"},
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "architecture": {"type": "string"},
            "quantization": {"type": "string"},
            "tensor_type": {"type": "string"},
            "context_tokens": {"type": "integer"},
            "threads": {"type": "integer"},
            "gpu_layers": {"type": "integer"},
            "backends": {"type": "array", "items": {"type": "string"}},
            "llama_cpp": {"type": "string"},
        }
    )


def _identifier(description: str) -> Json:
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_ID_CHARACTERS,
        "pattern": r"\S",
        "description": description,
    }


def _prose() -> Json:
    return {"type": "string", "minLength": 1, "pattern": r"\S"}
