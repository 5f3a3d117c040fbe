"""System One's part of `/openapi.json`: its requests, answers and errors."""

from __future__ import annotations

from typing import Any

from adapter.json_schema import LINE, array, closed, ref
from adapter.systemone import MAX_LEVELS, MIN_OPTIONS
from adapter.wire import Limits

_PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}
_TEXT_OR_NULL = {
    "type": ["string", "object", "array", "null"],
    "description": "Objects and arrays are shown to the model as JSON, in the order given.",
}
_TEXT = {"anyOf": [{"type": "string", "pattern": r"\S"}, {"type": ["object", "array"]}]}


def schemas(limits: Limits) -> dict[str, Any]:
    """Return the schemas by name; those named `SystemOne...` are what routes refer to."""
    return {
        "SystemOneRequest": _request(limits),
        "Question": {"oneOf": [ref("NoulQuestion"), ref("ChoiceQuestion"), ref("ScoreQuestion")]},
        "NoulQuestion": _noul_question(),
        "ChoiceQuestion": _choice_question(limits),
        "ScoreQuestion": _score_question(limits),
        "SystemOneAnswers": _answers(),
        "NoulAnswer": _answer("noul", {"noul": _PROBABILITY}),
        "ChoiceAnswer": _answer(
            "choice",
            {
                "choice": {"type": "string"},
                "probabilities": _map_of(_PROBABILITY),
                "confidence": _PROBABILITY,
            },
        ),
        "ScoreAnswer": _answer(
            "score",
            {
                "score": {"type": "number"},
                "legend": _map_of({"type": ["string", "object", "array"]}),
                "probabilities": _map_of(_PROBABILITY),
                "confidence": _PROBABILITY,
            },
        ),
        "SystemOneModels": _models(),
        "SystemOneInvalid": closed(_invalid()),
        "SystemOneError": closed(_other_error()),
        "SystemOneInvalidLine": closed({**_invalid(), **LINE}),
        "SystemOneErrorLine": closed({**_other_error(), **LINE}),
    }


def _request(limits: Limits) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "state": {"type": ["string", "object", "array"], "description": "The evidence."},
            "questions": {
                **_map_of(ref("Question")),
                "minProperties": 1,
                "maxProperties": limits.decisions,
                "propertyNames": {"minLength": 1},
                "description": "By ids, which are told back and never shown to the model.",
            },
            "assets": {"type": "null", "description": "Images are not read here."},
        },
        "required": ["state", "questions"],
        "description": "Fields that are not named here are ignored.",
    }


def _noul_question() -> dict[str, Any]:
    sides = {"true": _TEXT_OR_NULL, "false": _TEXT_OR_NULL}
    criteria = {**closed(sides, required=[]), "type": ["object", "null"]}
    described = [
        {"required": ["criteria"], "properties": {"criteria": _with(side)}} for side in sides
    ]
    return {**_question("noul", criteria), "anyOf": [_with("instructions"), *described]}


def _with(field: str) -> dict[str, Any]:
    return {"type": "object", "properties": {field: _TEXT}, "required": [field]}


def _choice_question(limits: Limits) -> dict[str, Any]:
    criteria = {
        **_map_of(_TEXT_OR_NULL),
        "minProperties": MIN_OPTIONS,
        "maxProperties": limits.options,
        "description": "Descriptions by name; null lets the name speak for itself.",
    }
    return _question("choice", criteria, required=["criteria"])


def _score_question(limits: Limits) -> dict[str, Any]:
    criteria = {
        **array(_TEXT),
        "minItems": MIN_OPTIONS,
        "maxItems": min(MAX_LEVELS, limits.options),
        "description": "Descriptions of the levels, from low to high.",
    }
    return _question("score", criteria, required=["criteria"])


def _question(
    kind: str, criteria: dict[str, Any], required: list[str] | None = None
) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "type": {"const": kind},
            "instructions": _TEXT_OR_NULL,
            "criteria": criteria,
        },
        "required": ["type", *(required or [])],
    }


def _answers() -> dict[str, Any]:
    tokens = {"type": "integer", "minimum": 0}
    usage = {"input_tokens": tokens, "output_tokens": {"const": 0}, "x_cached_tokens": tokens}
    return closed(
        {
            "model": {"type": "string", "description": "The model that answered."},
            "answers": _map_of(
                {"oneOf": [ref("NoulAnswer"), ref("ChoiceAnswer"), ref("ScoreAnswer")]}
            ),
            "usage": closed(usage),
            "x_model": ref("Model"),
            "x_timing": ref("Timing"),
        }
    )


def _answer(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    always = {
        "type": {"const": kind},
        **fields,
        "x_option_logits": array({"type": "number"}),
        "x_allowed_token_mass": _PROBABILITY,
        "x_input_tokens": {"type": "integer"},
        "x_cached_tokens": {"type": "integer"},
        "x_prompt_sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "x_prompt_version": {"type": "string"},
        "x_calibration": ref("Calibration"),
    }
    with_orders = {"x_orders_agree": {"type": "boolean"}}
    return closed({**always, **with_orders}, required=list(always))


def _models() -> dict[str, Any]:
    date = {"type": "string", "format": "date", "description": "Of the model's file."}
    model = closed(
        {"name": {"type": "string"}, "description": {"type": "string"}, "release_date": date}
    )
    return closed({"models": {**array(model), "minItems": 1, "maxItems": 1}})


def _invalid() -> dict[str, Any]:
    place = {
        "loc": array({"type": ["string", "integer"]}),
        "msg": {"type": "string"},
        "type": {"type": "string"},
    }
    return _error(array(closed(place)))


def _other_error() -> dict[str, Any]:
    detail = {
        "error_type": {"type": "string"},
        "message": {"type": "string"},
        "x_field": {"type": ["string", "null"]},
    }
    return _error(closed(detail))


def _error(detail: dict[str, Any]) -> dict[str, Any]:
    return {
        "detail": detail,
        "x_retryable": {"type": "boolean"},
        "x_request_id": {"type": "string"},
    }


def _map_of(values: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}
