"""From the logits at a prompt's last position to a probability for each declared option."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from adapter.engine import Forward
from adapter.errors import ScoringError
from adapter.tokens import Encoded


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

    def as_json(self) -> dict[str, Any]:
        """Return the identity as the wire has it."""
        return {**self.__dict__, "backends": list(self.backends)}


@dataclass(frozen=True)
class Readout:
    """What the logits say: one entry per answer slot, in the order of the slots.

    `option_logits` are the raw logits, `probabilities` their softmax over the slots alone, and
    `allowed_token_mass` the share of the whole vocabulary's softmax that the slots hold.
    """

    option_logits: tuple[float, ...]
    probabilities: tuple[float, ...]
    allowed_token_mass: float


@dataclass(frozen=True)
class Applied:
    """The calibration behind some probabilities: its file's SHA-256, and what of it was used."""

    sha256: str
    temperature: float
    position_prior: bool

    def as_json(self) -> dict[str, Any]:
        """Return it as the wire has it."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Scored:
    """A scored decision, with the accounting of what it cost.

    `orders` are the scores in each option order, where there were several, in the order of the
    slots of the first of them; those are never calibrated.
    """

    option_logits: tuple[float, ...]
    probabilities: tuple[float, ...]
    allowed_token_mass: float
    answer_token_ids: tuple[int, ...]
    input_tokens: int
    cached_tokens: int
    prompt_sha256: str
    prompt_version: str
    forward_seconds: float
    orders: tuple[Scored, ...] = ()
    calibration: Applied | None = None

    @property
    def calibration_json(self) -> dict[str, Any] | None:
        """The calibration as the wire has it: null where none was applied."""
        return self.calibration.as_json() if self.calibration else None

    @property
    def orders_agree(self) -> bool:
        """Whether every order puts the same options first."""
        return len({_highest(order.option_logits) for order in self.orders}) <= 1


def read_logits(logits: npt.NDArray[np.float32], slots: tuple[int, ...]) -> Readout:
    """Restrict `logits`, of shape (vocabulary,), to the token ids in `slots`.

    Raises:
        ScoringError: a logit is NaN or infinite, so no probability can be trusted.
    """
    whole = logits.astype(np.float64)
    if not np.isfinite(whole).all():
        raise ScoringError("the model returned logits that are not finite")
    allowed = whole[list(slots)]
    total = _log_sum_exp(allowed)
    return Readout(
        option_logits=tuple(allowed.tolist()),
        probabilities=tuple(np.exp(allowed - total).tolist()),
        allowed_token_mass=float(min(1.0, np.exp(total - _log_sum_exp(whole)))),
    )


def _log_sum_exp(values: npt.NDArray[np.float64]) -> np.float64:
    highest = values.max()
    return np.float64(highest + np.log(np.exp(values - highest).sum()))


def score(encoded: Encoded, forward: Forward) -> Scored:
    """Read the answer of one forward pass.

    Raises:
        ScoringError: a logit is NaN or infinite.
    """
    readout = read_logits(forward.logits, encoded.slots)
    return Scored(
        option_logits=readout.option_logits,
        probabilities=readout.probabilities,
        allowed_token_mass=readout.allowed_token_mass,
        answer_token_ids=encoded.slots,
        input_tokens=encoded.input_tokens,
        cached_tokens=forward.cached_tokens,
        prompt_sha256=encoded.prompt_sha256,
        prompt_version=encoded.prompt_version,
        forward_seconds=forward.seconds,
    )


def combine_orders(scored: tuple[Scored, ...], orders: int) -> tuple[Scored, ...]:
    """Return one score a decision, out of `orders` for each that stand side by side."""
    if orders == 1:
        return scored
    return tuple(map(_combine, scored[::2], scored[1::2]))


def _combine(first: Scored, second: Scored) -> Scored:
    """Return one score of a decision out of those in its declared and its reversed option order.

    Log-probabilities are averaged, option by option, and renormalized. Whichever order was
    declared, the same two prompts give each option the same bits: nothing here depends on order.
    """
    orders = (first, _reversed(second))
    averages = [_mean(pair) for pair in zip(*map(_log_probabilities, orders), strict=True)]
    logits = zip(*(order.option_logits for order in orders), strict=True)
    return replace(
        first,
        option_logits=tuple(_mean(pair) for pair in logits),
        probabilities=softmax(averages),
        allowed_token_mass=_mean([order.allowed_token_mass for order in orders]),
        input_tokens=sum(order.input_tokens for order in orders),
        cached_tokens=sum(order.cached_tokens for order in orders),
        forward_seconds=sum(order.forward_seconds for order in orders),
        orders=orders,
    )


def softmax(logits: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Return the softmax of `logits` divided by `temperature`.

    Each number depends on the set of the others alone: in another order they get the same bits.
    """
    highest = max(logits)
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def _reversed(scored: Scored) -> Scored:
    return replace(
        scored,
        option_logits=scored.option_logits[::-1],
        probabilities=scored.probabilities[::-1],
        answer_token_ids=scored.answer_token_ids[::-1],
    )


def _log_probabilities(scored: Scored) -> list[float]:
    # Exactly rounded sums are the same from either end.
    highest = max(scored.option_logits)
    total = math.fsum(math.exp(logit - highest) for logit in scored.option_logits)
    return [logit - highest - math.log(total) for logit in scored.option_logits]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _highest(logits: tuple[float, ...]) -> frozenset[int]:
    return frozenset(index for index, logit in enumerate(logits) if logit == max(logits))
