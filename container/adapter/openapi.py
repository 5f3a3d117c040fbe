"""`/openapi.json`: the wire contract of this very adapter, with its model's own limits."""

from __future__ import annotations

from typing import Any

from adapter.decision import LAYOUTS, ORDERS, Json
from adapter.native import MAX_ID_CHARACTERS, MIN_OPTIONS, Limits
from adapter.tokens import MAX_OPTIONS

_ERRORS = {
    "400": "The request is wrong: `field` and `error` say where and how.",
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
            "/ping": {"get": _ping()},
            "/metrics": {"get": _text("Prometheus metrics.", "text/plain")},
            "/openapi.json": {"get": _text("This document.", "application/json")},
        },
        "components": {"schemas": _schemas(limits)},
    }


def _invocations() -> dict[str, Any]:
    return {
        "operationId": "invoke",
        "summary": "Score one decision, or several at once.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("Request")}},
        },
        "responses": {
            "200": {
                "description": "`result` for a `decision`, `results` for `decisions`.",
                "content": {
                    "application/json": {"schema": {"oneOf": [_ref("Single"), _ref("Several")]}}
                },
            },
            **{status: _error(text) for status, text in _ERRORS.items()},
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


def _text(summary: str, media_type: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {"200": {"description": summary, "content": {media_type: {}}}},
    }


def _error(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": _ref("Error")}},
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(limits: Limits) -> dict[str, Any]:
    return {
        "Request": _request(limits),
        "Decision": _decision(limits),
        "Option": _closed(
            {"id": _identifier("Told back, never shown to the model."), "description": _prose()}
        ),
        "Scoring": _closed(
            {
                "orders": {"enum": list(ORDERS)},
                "layout": {"enum": list(LAYOUTS)},
            },
            required=[],
        ),
        "Single": _closed({"result": _ref("Result")}),
        "Several": _closed(
            {"results": {"type": "array", "items": _ref("Result")}, "timing": _ref("Timing")}
        ),
        "Result": _result(),
        "Order": _closed(_scores()),
        "Model": _model(),
        "Timing": _closed(
            {
                "queue_seconds": {"type": "number"},
                "forward_seconds": {"type": "number"},
                "total_seconds": {"type": "number"},
            }
        ),
        "Error": _closed(
            {
                "error": {"type": "string"},
                "code": {"type": "string"},
                "retryable": {"type": "boolean"},
                "field": {"type": ["string", "null"]},
                "request_id": {"type": "string"},
            }
        ),
    }


def _request(limits: Limits) -> dict[str, Any]:
    several = {
        "type": "array",
        "items": _ref("Decision"),
        "minItems": 1,
        "maxItems": limits.decisions,
        "description": "Their ids are unique.",
    }
    return {
        "oneOf": [
            _closed({"decision": _ref("Decision"), "scoring": _ref("Scoring")}, ["decision"]),
            _closed({"decisions": several, "scoring": _ref("Scoring")}, ["decisions"]),
        ]
    }


def _decision(limits: Limits) -> dict[str, Any]:
    return _closed(
        {
            "id": _identifier("Told back with the result."),
            "state": {"description": "The evidence: any JSON value."},
            "question": _prose(),
            "options": {
                "type": "array",
                "items": _ref("Option"),
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
        "calibration": {"type": "null"},
        "model": _ref("Model"),
        "readout": {"type": "string"},
        "timing": _ref("Timing"),
    }
    with_orders = {
        "orders": {
            "type": "array",
            "items": _ref("Order"),
            "minItems": 2,
            "maxItems": 2,
            "description": "With `orders: 2`: the scores in the declared and the reversed order.",
        },
        "orders_agree": {
            "type": "boolean",
            "description": "With `orders: 2`: whether both orders put the same option first.",
        },
    }
    return _closed({**always, **with_orders}, list(always))


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


def _model() -> dict[str, Any]:
    return _closed(
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


def _closed(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


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
