"""A policy: which results to act on, by a threshold that held on labelled decisions.

It says how often results like these were right. It is no authorization: whatever may do harm needs
its own permission, whoever or whatever decided.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ballot.errors import BallotError, InvalidAnswer
from ballot.results import Result
from ballot.wire import Fields

VERSION = 1
Measure = Literal["confidence", "margin"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
Verdict = Literal["accept", "fallback", "abstain"]


class PolicyError(BallotError):
    """A policy cannot be read (`invalid_policy`), or is of another endpoint (`policy_mismatch`)."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a policy was measured on; `calibration_sha256` is None where none was applied."""

    model_sha256: str
    prompt_version: str
    orders: int
    calibration_sha256: str | None

    @classmethod
    def of(cls, result: Result) -> Bound:
        """Return what answered `result`."""
        return cls(
            model_sha256=result.model.sha256,
            prompt_version=result.prompt_version,
            orders=max(1, len(result.orders)),
            calibration_sha256=result.calibration.sha256 if result.calibration else None,
        )


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Act on a result whose `measure` is at least `threshold`.

    The confidence is the probability of the best option, the margin what it has over the second.
    `options` are the fewest and the most options that it was measured with; `least_mass` is the
    allowed token mass below which an answer counts as none. `measured` is the evidence.
    """

    measure: Measure
    threshold: float
    options: tuple[int, int]
    least_mass: float
    bound: Bound
    measured: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read the file that `ballot threshold` wrote.

        Raises:
            PolicyError: it cannot be read, or is no policy, naming the first wrong field.
        """
        try:
            value = json.loads(Path(path).read_text("utf-8"))
            return cls.from_json(value)
        except (OSError, ValueError, RecursionError) as error:
            raise PolicyError(f"cannot read {path}: {error}", code="invalid_policy") from error
        except InvalidAnswer as error:
            raise PolicyError(f"{path}: {error.message}", code="invalid_policy") from error

    @classmethod
    def from_json(cls, value: object) -> Policy:
        """Read a policy.

        Raises:
            InvalidAnswer: naming the first wrong field by its path.
        """
        fields = Fields.of(value, "policy")
        bound = fields.object("bound")
        if fields.whole("version") != VERSION:
            raise InvalidAnswer(f"policy.version is not {VERSION}", code="invalid_answer")
        return cls(
            measure=_measure(fields.text("measure")),
            threshold=_share(fields, "threshold"),
            options=_options(fields.wholes("options")),
            least_mass=_share(fields, "least_mass"),
            bound=Bound(
                model_sha256=bound.text("model_sha256"),
                prompt_version=bound.text("prompt_version"),
                orders=bound.whole("orders"),
                calibration_sha256=bound.optional_text("calibration_sha256"),
            ),
            measured=dict(fields.object("measured").values),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the policy as its file has it."""
        return {"version": VERSION, **asdict(self), "options": list(self.options)}

    def judge(self, result: Result) -> Verdict:
        """Return what to do with `result`.

        `accept`: results like it were right as often as was asked for. `fallback`: take another
        way, such as a person or a larger model. `abstain`: the model was about to write something
        that is no option, so not even the ranking means much.

        Raises:
            PolicyError: the result is of another model, prompt, number of orders or calibration
                than the policy was measured on.
        """
        self._check_bound(Bound.of(result))
        if result.allowed_token_mass < self.least_mass:
            return "abstain"
        fewest, most = self.options
        is_known = fewest <= len(result.option_ids) <= most
        return "accept" if is_known and self._measured_of(result) >= self.threshold else "fallback"

    def _measured_of(self, result: Result) -> float:
        return measured(self.measure, result.probabilities)

    def _check_bound(self, found: Bound) -> None:
        wanted, there = asdict(self.bound), asdict(found)
        differences = [
            f"{name} is {there[name] or 'none'}, the policy's is {wanted[name] or 'none'}"
            for name in wanted
            if there[name] != wanted[name]
        ]
        if differences:
            raise PolicyError(
                f"this policy is not for this result: {'; '.join(differences)}",
                code="policy_mismatch",
            )


def measured(measure: Measure, probabilities: tuple[float, ...]) -> float:
    """Return what a threshold is compared with."""
    first, second = sorted(probabilities, reverse=True)[:2]
    return first if measure == "confidence" else first - second


def _measure(text: str) -> Measure:
    for measure in MEASURES:
        if text == measure:
            return measure
    raise InvalidAnswer(
        f"policy.measure is not one of: {', '.join(MEASURES)}", code="invalid_answer"
    )


def _share(fields: Fields, name: str) -> float:
    value = fields.number(name)
    if not 0 <= value <= 1:
        raise InvalidAnswer(f"policy.{name} is not within 0 and 1", code="invalid_answer")
    return value


def _options(counts: tuple[int, ...]) -> tuple[int, int]:
    match counts:
        case (fewest, most) if 2 <= fewest <= most:
            return fewest, most
    raise InvalidAnswer("policy.options is not two numbers in order", code="invalid_answer")
