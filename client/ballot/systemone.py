"""The System One API: typed questions about one state, and their typed answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ballot.errors import InvalidAnswer
from ballot.wire import Fields, Json

DEFAULT_MODEL = "jev-latest"


@dataclass(frozen=True)
class Noul:
    """A yes/no question. `true` and `false` describe what counts as yes and as no.

    The instructions or one of the two sides must be there; each is a text, object or array.
    """

    instructions: Json = None
    true: Json = None
    false: Json = None

    def as_json(self) -> dict[str, Json]:
        """Return the question as the wire has it."""
        sides: dict[str, Json] = {"true": self.true, "false": self.false}
        criteria = {name: side for name, side in sides.items() if side is not None}
        return _question("noul", self.instructions, criteria or None)


@dataclass(frozen=True)
class Choice:
    """A choice between 2 to 255 names, each with a description, or None: the name describes it."""

    instructions: Json
    criteria: Mapping[str, Json]

    def as_json(self) -> dict[str, Json]:
        """Return the question as the wire has it."""
        return _question("choice", self.instructions, self.criteria)


@dataclass(frozen=True)
class Score:
    """A rating on 2 to 10 described levels, from the lowest to the highest."""

    instructions: Json
    criteria: Sequence[Json]

    def as_json(self) -> dict[str, Json]:
        """Return the question as the wire has it."""
        return _question("score", self.instructions, self.criteria)


Question: TypeAlias = "Noul | Choice | Score"


@dataclass(frozen=True)
class NoulAnswer:
    """The probability of yes."""

    noul: float


@dataclass(frozen=True)
class ChoiceAnswer:
    """The most probable name, every name's probability, and a confidence from 0 to 1."""

    choice: str
    probabilities: Mapping[str, float]
    confidence: float


@dataclass(frozen=True)
class ScoreAnswer:
    """The expected level, each level's text and probability, and a confidence from 0 to 1."""

    score: float
    legend: Mapping[int, Json]
    probabilities: Mapping[int, float]
    confidence: float


Answer: TypeAlias = "NoulAnswer | ChoiceAnswer | ScoreAnswer"


@dataclass(frozen=True)
class Usage:
    """Tokens read and generated."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class SystemOneAnswer:
    """The answers by question id, and the model that gave them; `raw` is the answer as it came."""

    model: str
    answers: Mapping[str, Answer]
    usage: Usage
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_answer(cls, fields: Fields) -> SystemOneAnswer:
        """Read an answer.

        Raises:
            InvalidAnswer: naming the first wrong field by its path.
        """
        answers = fields.object("answers")
        usage = fields.object("usage")
        return cls(
            model=fields.text("model"),
            answers={name: _answer(answers.object(name)) for name in answers.values},
            usage=Usage(usage.whole("input_tokens"), usage.whole("output_tokens")),
            raw=fields.values,
        )


def request(state: Json, questions: Mapping[str, Question], model: str) -> dict[str, Json]:
    """Return the request as the wire has it, the state first (see `Decision.as_json`)."""
    asked: dict[str, Json] = {name: question.as_json() for name, question in questions.items()}
    return {"state": state, "questions": asked, "model": model}


def _question(kind: str, instructions: Json, criteria: Json) -> dict[str, Json]:
    fields: dict[str, Json] = {"instructions": instructions, "criteria": criteria}
    return {"type": kind, **{name: value for name, value in fields.items() if value is not None}}


def _answer(fields: Fields) -> Answer:
    kind = fields.text("type")
    if kind == "noul":
        return NoulAnswer(fields.number("noul"))
    if kind == "choice":
        return ChoiceAnswer(
            choice=fields.text("choice"),
            probabilities=fields.number_map("probabilities"),
            confidence=fields.number("confidence"),
        )
    if kind == "score":
        return ScoreAnswer(
            score=fields.number("score"),
            legend=_by_level(fields.object("legend").values, fields.path),
            probabilities=_by_level(fields.number_map("probabilities"), fields.path),
            confidence=fields.number("confidence"),
        )
    raise InvalidAnswer(f"{fields.path}.type {kind!r} is not known", code="invalid_answer")


def _by_level(values: Mapping[str, Any], path: str) -> dict[int, Any]:
    try:
        return {int(level): value for level, value in values.items()}
    except ValueError as error:
        raise InvalidAnswer(
            f"{path} has a level that is no number", code="invalid_answer"
        ) from error
