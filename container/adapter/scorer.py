"""From the logits at a prompt's last position to a probability for each declared option."""

from __future__ import annotations

from dataclasses import dataclass
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
class Scored:
    """A scored decision, with the accounting of what it cost."""

    option_logits: tuple[float, ...]
    probabilities: tuple[float, ...]
    allowed_token_mass: float
    answer_token_ids: tuple[int, ...]
    input_tokens: int
    cached_tokens: int
    prompt_sha256: str
    prompt_version: str
    forward_seconds: float


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
