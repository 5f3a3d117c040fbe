"""The System One wire format: questions of three types about one state, answered by probabilities.

The API is TypeSafe's, as its official SDK and the conformance suite jevcompat know it. Each
question becomes one `Decision`, so that no answer depends on another question, on the order of
the questions or on their ids; docs/system-one.md says how.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any, NoReturn, Protocol, TypeAlias

from adapter.decision import Decision, Json, Option, Scoring, kind_of
from adapter.errors import InvalidRequest, RequestError, UnknownModel
from adapter.scorer import ModelIdentity, Scored
from adapter.wire import ErrorAnswer, Limits, RequestTiming, Terms, WireFormat

KEY = "questions"  # What tells a System One body from a native one.
MIN_OPTIONS = 2
MAX_LEVELS = 10
# Where a question has no instructions, in the words that the prompt uses for its parts.
DEFAULT_QUESTION = "Which option fits the evidence best?"
# The names under which clients of the hosted service know its models.
_ALIAS_PREFIX = "jev-"
_FILE_ENDING = re.compile(r"(-\d{5}-of-\d{5})?\.gguf\Z")
_MAX_SHOWN_CHARACTERS = 200
_STATUS_OF_INVALID = 422

Path: TypeAlias = tuple[str | int, ...]


class Question(Protocol):
    """A parsed question: the decision to score, and what its probabilities mean."""

    @property
    def decision(self) -> Decision: ...

    def answer(self, probabilities: tuple[float, ...]) -> dict[str, Any]:
        """Return the fields of the answer, given one probability an option."""


@dataclass(frozen=True)
class Noul:
    """A yes/no question; its decision's options are yes and no, in this order."""

    decision: Decision

    def answer(self, probabilities: tuple[float, ...]) -> dict[str, Any]:
        """Return the probability of yes."""
        return {"type": "noul", "noul": probabilities[0]}


@dataclass(frozen=True)
class Choice:
    """A question with named options; the ids of its decision's options are the names."""

    decision: Decision

    def answer(self, probabilities: tuple[float, ...]) -> dict[str, Any]:
        """Return the most probable name, and how far it stands out."""
        names = [option.id for option in self.decision.options]
        return {
            "type": "choice",
            "choice": names[_highest(probabilities)],
            "probabilities": dict(zip(names, probabilities, strict=True)),
            "confidence": choice_confidence(probabilities),
        }


@dataclass(frozen=True)
class Score:
    """A question with levels from low to high; `levels` are their descriptions as they came."""

    decision: Decision
    levels: tuple[Json, ...]

    def answer(self, probabilities: tuple[float, ...]) -> dict[str, Any]:
        """Return the expected level, and how far the probabilities gather around the likeliest."""
        return {
            "type": "score",
            "score": math.fsum(level * share for level, share in enumerate(probabilities)),
            "legend": {str(level): text for level, text in enumerate(self.levels)},
            "probabilities": {str(level): share for level, share in enumerate(probabilities)},
            "confidence": score_confidence(probabilities),
        }


def choice_confidence(probabilities: tuple[float, ...]) -> float:
    """Return the top probability on a scale from 0, where all are equal, to 1."""
    equal = 1 / len(probabilities)
    return max(0.0, (max(probabilities) - equal) / (1 - equal))


def score_confidence(probabilities: tuple[float, ...]) -> float:
    """Return 1 less the mean distance from the likeliest level, in units of the uniform spread.

    The unit is the mean distance of all levels from the middle; what is under 0 counts as 0.
    """
    levels = range(len(probabilities))
    mode, middle = _highest(probabilities), (len(probabilities) - 1) / 2
    distance = math.fsum(probabilities[level] * abs(level - mode) for level in levels)
    uniform = math.fsum(abs(level - middle) for level in levels) / len(probabilities)
    return max(0.0, 1 - distance / uniform)


def _highest(probabilities: tuple[float, ...]) -> int:
    return max(range(len(probabilities)), key=probabilities.__getitem__)


@dataclass(frozen=True)
class SystemOneRequest:
    """The parsed request: one question for each id, in the order of the request."""

    questions: tuple[Question, ...]
    scoring: Scoring

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision a question, all about the same state."""
        return tuple(question.decision for question in self.questions)

    def path(self, index: int) -> str:
        """Return where in the request its question number `index` stands."""
        return f"{KEY}.{self.questions[index].decision.id}"[:_MAX_SHOWN_CHARACTERS]

    def render(
        self, scored: tuple[Scored, ...], *, model: ModelIdentity, timing: RequestTiming
    ) -> dict[str, Any]:
        """Return the answers by question id; what the API does not know starts with `x_`."""
        return {
            "model": model_name(model),
            "answers": {
                question.decision.id: {**question.answer(score.probabilities), **_details(score)}
                for question, score in zip(self.questions, scored, strict=True)
            },
            "usage": {
                "input_tokens": sum(score.input_tokens for score in scored),
                "output_tokens": 0,
                "x_cached_tokens": sum(score.cached_tokens for score in scored),
            },
            "x_model": model.as_json(),
            "x_timing": timing.as_json(),
        }


def _details(scored: Scored) -> dict[str, Any]:
    """Return what an answer has beyond the API; logits stand in the order of the options."""
    details: dict[str, Any] = {
        "x_option_logits": list(scored.option_logits),
        "x_allowed_token_mass": scored.allowed_token_mass,
        "x_input_tokens": scored.input_tokens,
        "x_cached_tokens": scored.cached_tokens,
        "x_prompt_sha256": scored.prompt_sha256,
        "x_prompt_version": scored.prompt_version,
        "x_calibration": scored.calibration_json,
    }
    if scored.orders:
        details["x_orders_agree"] = scored.orders_agree
    return details


def model_name(model: ModelIdentity) -> str:
    """Return the name of the model that answers: its file's, without ending and shard number."""
    return _FILE_ENDING.sub("", model.file)


def list_models(model: ModelIdentity, *, released: date) -> dict[str, Any]:
    """Return the answer of `/v1/models`: the one model that answers here."""
    return {
        "models": [
            {
                "name": model_name(model),
                "description": (
                    f"{model.file}: architecture {model.architecture}, quantization "
                    f"{model.quantization}, SHA-256 {model.sha256}. No GGUF names its release: "
                    "the date is that of the file where it is served."
                ),
                "release_date": released.isoformat(),
            }
        ]
    }


def parse_request(body: Json, terms: Terms) -> SystemOneRequest:
    """Validate a parsed body. Fields that it does not know are ignored, as the API says.

    Raises:
        InvalidRequest: with the place of the first wrong value in `loc`.
        UnknownModel: it asks for another model than this one.
    """
    request = _object(body, ())
    state = _state(_required(request, "state", ()))
    questions = _object(_required(request, KEY, ()), (KEY,))
    _check_count(
        len(questions),
        (KEY,),
        lowest=1,
        highest=terms.limits.decisions,
        too_many="too_many_decisions",
    )
    if request.get("assets") is not None:
        raise InvalidRequest(
            "images are not read here; leave assets out", code="unsupported_value", loc=("assets",)
        )
    parsed = tuple(_question(name, value, state, terms.limits) for name, value in questions.items())
    _check_model(request, terms)
    return SystemOneRequest(parsed, scoring=terms.scoring)


def _state(value: Json) -> Json:
    if not isinstance(value, str | dict | list):
        _refuse_type(value, ("state",), "a string, an object or an array")
    return value


def _check_model(request: dict[str, Json], terms: Terms) -> None:
    served = model_name(terms.model)
    asked = request.get("model", served)
    if not isinstance(asked, str):
        _refuse_type(asked, ("model",), "a string")
    is_alias = terms.model_aliases and asked.startswith(_ALIAS_PREFIX)
    if asked != served and not is_alias:
        raise UnknownModel(f"there is no model {asked[:80]!r} here; this one is {served!r}")


def _question(name: str, value: Json, state: Json, limits: Limits) -> Question:
    path: Path = (KEY, name)
    if not name:
        raise InvalidRequest("a question's id is empty", code="empty_value", loc=path)
    fields = _object(value, path)
    kind = _required(fields, "type", path)
    if not isinstance(kind, str) or kind not in _PARSERS:
        raise InvalidRequest(
            f"the type must be one of: {', '.join(_PARSERS)}",
            code="unsupported_value",
            loc=(*path, "type"),
        )
    return _PARSERS[kind](_Draft(name, kind, state, fields, (*path, kind)), limits)


@dataclass(frozen=True)
class _Draft:
    """What the question types share: id, state and fields, and where in the body they stand."""

    id: str
    kind: str
    state: Json
    fields: dict[str, Json]
    path: Path

    @property
    def instructions(self) -> str | None:
        """The instructions as text, or None where they are missing, null or blank."""
        return _text(self.fields.get("instructions"), (*self.path, "instructions"))

    @property
    def criteria_path(self) -> Path:
        """Where the criteria stand."""
        return (*self.path, "criteria")

    def decision(self, options: list[Option]) -> Decision:
        """Return the decision between `options`."""
        question = self.instructions or DEFAULT_QUESTION
        return Decision(self.id, self.state, question, tuple(options), self.kind)


def _noul(draft: _Draft, _: Limits) -> Noul:
    yes, no = _sides(draft)
    if draft.instructions is None and yes is None and no is None:
        raise InvalidRequest(
            "a noul needs instructions, or criteria that describe true or false",
            code="missing_field",
            loc=(*draft.path, "instructions"),
        )
    options = [Option("true", _side("Yes", yes)), Option("false", _side("No", no))]
    return Noul(draft.decision(options))


def _sides(draft: _Draft) -> tuple[str | None, str | None]:
    """Return what describes the true and the false side, as far as something does."""
    path = draft.criteria_path
    value = draft.fields.get("criteria")
    criteria = {} if value is None else _object(value, path)
    for key in criteria:
        if key not in ("true", "false"):
            raise InvalidRequest(
                "a noul has the sides true and false alone", code="unknown_field", loc=(*path, key)
            )
    return (
        _text(criteria.get("true"), (*path, "true")),
        _text(criteria.get("false"), (*path, "false")),
    )


def _side(word: str, description: str | None) -> str:
    """Return what the model reads for one side: a description alone need not say which it is."""
    return word if description is None else f"{word}: {description}"


def _choice(draft: _Draft, limits: Limits) -> Choice:
    path = draft.criteria_path
    criteria = _object(_required(draft.fields, "criteria", draft.path), path)
    _check_options(len(criteria), path, highest=limits.options)
    options = [
        Option(name, _described(name, value, (*path, name))) for name, value in criteria.items()
    ]
    return Choice(draft.decision(options))


def _described(name: str, value: Json, path: Path) -> str:
    description = _text(value, path)
    if description is None and not name.strip():
        raise InvalidRequest(
            "an option without a description needs a name", code="empty_value", loc=path
        )
    return name if description is None else description


def _score(draft: _Draft, limits: Limits) -> Score:
    path = draft.criteria_path
    levels = _required(draft.fields, "criteria", draft.path)
    if not isinstance(levels, list):
        _refuse_type(levels, path, "an array")
    _check_options(len(levels), path, highest=min(MAX_LEVELS, limits.options))
    options = [
        Option(str(index), _level(value, (*path, index))) for index, value in enumerate(levels)
    ]
    return Score(draft.decision(options), tuple(levels))


def _level(value: Json, path: Path) -> str:
    if value is None:
        _refuse_type(value, path, "a string, an object or an array")
    description = _text(value, path)
    if description is None:
        raise InvalidRequest("a level needs a description", code="empty_value", loc=path)
    return description


_PARSERS: dict[str, Callable[[_Draft, Limits], Question]] = {
    "noul": _noul,
    "choice": _choice,
    "score": _score,
}


def _text(value: Json, path: Path) -> str | None:
    """Return instructions or a description as text: objects and arrays are written as JSON.

    None stands for null and for a string of white space alone, which say nothing.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | list):
        _refuse_type(value, path, "a string, an object or an array")
    return json.dumps(value, ensure_ascii=False)


def _object(value: Json, path: Path) -> dict[str, Json]:
    if not isinstance(value, dict):
        _refuse_type(value, path, "an object")
    return value


def _required(fields: dict[str, Json], key: str, path: Path) -> Json:
    if key not in fields:
        raise InvalidRequest("this field is missing", code="missing_field", loc=(*path, key))
    return fields[key]


def _check_options(count: int, path: Path, *, highest: int) -> None:
    _check_count(count, path, lowest=MIN_OPTIONS, highest=highest, too_many="too_many_options")


def _check_count(count: int, path: Path, *, lowest: int, highest: int, too_many: str) -> None:
    if count < lowest:
        raise InvalidRequest(
            f"there must be at least {lowest}, not {count}", code="too_few_items", loc=path
        )
    if count > highest:
        raise InvalidRequest(
            f"there are {count}; this endpoint takes at most {highest}", code=too_many, loc=path
        )


def _refuse_type(value: Json, path: Path, expected: str) -> NoReturn:
    raise InvalidRequest(
        f"this must be {expected}, not {kind_of(value)}", code="wrong_type", loc=path
    )


def _render_error(error: RequestError, request_id: str) -> ErrorAnswer:
    """Write what is wrong with a body as a list of places, everything else as type and message."""
    beyond = {"x_retryable": error.retryable, "x_request_id": request_id}
    if isinstance(error, InvalidRequest):
        place = ["body", *(_shown(key) for key in error.loc)]
        detail = [{"loc": place, "msg": error.message, "type": error.code}]
        return ErrorAnswer(_STATUS_OF_INVALID, {"detail": detail, **beyond})
    described = {"error_type": error.code, "message": error.message, "x_field": error.field}
    return ErrorAnswer(error.status, {"detail": described, **beyond})


def _shown(key: str | int) -> str | int:
    return key[:_MAX_SHOWN_CHARACTERS] if isinstance(key, str) else key


WIRE = WireFormat(
    parse=parse_request,
    render_error=_render_error,
    request_id_headers=("x-request-id", "x-typesafe-request-id"),
)
