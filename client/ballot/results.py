"""What is answered: a probability for each option, and everything needed to trust and repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ballot.errors import InvalidAnswer
from ballot.wire import Fields


@dataclass(frozen=True)
class ModelIdentity:
    """What answered: the file, its hash, and everything about the runtime that can move a bit."""

    file: str
    sha256: str
    architecture: str
    quantization: str
    tensor_type: str
    context_tokens: int
    threads: int
    gpu_layers: int
    backends: tuple[str, ...]
    llama_cpp: str

    @classmethod
    def of(cls, fields: Fields) -> ModelIdentity:
        """Read the identity out of an answer."""
        return cls(
            file=fields.text("file"),
            sha256=fields.text("sha256"),
            architecture=fields.text("architecture"),
            quantization=fields.text("quantization"),
            tensor_type=fields.text("tensor_type"),
            context_tokens=fields.whole("context_tokens"),
            threads=fields.whole("threads"),
            gpu_layers=fields.whole("gpu_layers"),
            backends=fields.texts("backends"),
            llama_cpp=fields.text("llama_cpp"),
        )


@dataclass(frozen=True)
class Timing:
    """Seconds that the request waited for the model, was decoded, and took in all there."""

    queue_seconds: float
    forward_seconds: float
    total_seconds: float

    @classmethod
    def of(cls, fields: Fields) -> Timing:
        """Read the timing out of an answer."""
        return cls(
            queue_seconds=fields.number("queue_seconds"),
            forward_seconds=fields.number("forward_seconds"),
            total_seconds=fields.number("total_seconds"),
        )


@dataclass(frozen=True)
class OrderScores:
    """The scores in one option order; every list is in the order that the decision declared.

    `probabilities` sum to 1; `option_logits` are raw; `allowed_token_mass` is the share of the
    model's whole next-token probability that the options got.
    """

    probabilities: tuple[float, ...]
    option_logits: tuple[float, ...]
    answer_token_ids: tuple[int, ...]
    input_tokens: int
    cached_tokens: int
    allowed_token_mass: float
    prompt_sha256: str

    @classmethod
    def of(cls, fields: Fields, options: int) -> OrderScores:
        """Read the scores of a decision of so many options out of an answer."""
        scores = cls(
            probabilities=fields.numbers("probabilities"),
            option_logits=fields.numbers("option_logits"),
            answer_token_ids=fields.wholes("answer_token_ids"),
            input_tokens=fields.whole("input_tokens"),
            cached_tokens=fields.whole("cached_tokens"),
            allowed_token_mass=fields.number("allowed_token_mass"),
            prompt_sha256=fields.text("prompt_sha256"),
        )
        lengths = map(len, (scores.probabilities, scores.option_logits, scores.answer_token_ids))
        if set(lengths) != {options}:
            raise InvalidAnswer(
                f"{fields.path} has not one score for each of {options} options",
                code="invalid_answer",
            )
        return scores


@dataclass(frozen=True)
class AppliedCalibration:
    """The calibration behind some probabilities: its file's SHA-256, and what of it was used.

    The temperature is 1 where the file has none for such a decision; `position_prior` says whether
    what the model favours each place in the list by was taken off.
    """

    sha256: str
    temperature: float
    position_prior: bool

    @classmethod
    def of(cls, fields: Fields) -> AppliedCalibration:
        """Read the calibration out of an answer."""
        return cls(
            sha256=fields.text("sha256"),
            temperature=fields.number("temperature"),
            position_prior=fields.truth("position_prior"),
        )


@dataclass(frozen=True)
class Result(OrderScores):
    """A scored decision. With two option orders these are the averages, and `orders` has both.

    `calibration` is None where the probabilities are the raw logits' softmax.
    `raw` is the result as it came, with the fields that this version does not know.
    """

    id: str
    option_ids: tuple[str, ...]
    prompt_version: str
    calibration: AppliedCalibration | None
    model: ModelIdentity
    readout: str
    timing: Timing
    orders: tuple[OrderScores, ...]
    orders_agree: bool | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_answer(cls, fields: Fields) -> Result:
        """Read a result out of an answer.

        Raises:
            InvalidAnswer: naming the first wrong field by its path.
        """
        option_ids = fields.texts("option_ids")
        scores = OrderScores.of(fields, len(option_ids))
        orders = fields.objects("orders") if "orders" in fields.values else ()
        return cls(
            **vars(scores),
            id=fields.text("id"),
            option_ids=option_ids,
            prompt_version=fields.text("prompt_version"),
            calibration=_calibration(fields),
            model=ModelIdentity.of(fields.object("model")),
            readout=fields.text("readout"),
            timing=Timing.of(fields.object("timing")),
            orders=tuple(OrderScores.of(order, len(option_ids)) for order in orders),
            orders_agree=fields.truth("orders_agree") if orders else None,
            raw=fields.values,
        )

    @property
    def best(self) -> str:
        """The id of the most probable option; of equals, the one declared first."""
        return self.option_ids[self.probabilities.index(max(self.probabilities))]

    @property
    def margin(self) -> float:
        """How much more probable the best option is than the second."""
        first, second = sorted(self.probabilities, reverse=True)[:2]
        return first - second

    @property
    def by_option(self) -> dict[str, float]:
        """The probability of each option, by its id, in the order declared."""
        return dict(zip(self.option_ids, self.probabilities, strict=True))

    def probability_of(self, option_id: str) -> float:
        """Return the probability of one option.

        Raises:
            KeyError: the decision has no such option.
        """
        return self.by_option[option_id]


def _calibration(fields: Fields) -> AppliedCalibration | None:
    if fields.values.get("calibration") is None:
        return None
    return AppliedCalibration.of(fields.object("calibration"))
