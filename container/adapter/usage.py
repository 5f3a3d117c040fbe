"""What answers cost: counted per request, for the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapter.scorer import Scored


@dataclass(frozen=True)
class Usage:
    """The sums over some decisions, and the lowest of their allowed token masses."""

    decisions: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    forward_seconds: float = 0.0
    allowed_token_mass: float = 1.0

    def __add__(self, other: Usage) -> Usage:
        """Return the usage of both."""
        return Usage(
            decisions=self.decisions + other.decisions,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            queue_seconds=self.queue_seconds + other.queue_seconds,
            forward_seconds=self.forward_seconds + other.forward_seconds,
            allowed_token_mass=min(self.allowed_token_mass, other.allowed_token_mass),
        )

    def as_fields(self) -> dict[str, Any]:
        """Return it as the log has it: nothing where nothing was scored."""
        if not self.decisions:
            return {}
        return {
            "decisions": self.decisions,
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "decoded_tokens": self.input_tokens - self.cached_tokens,
            "queue_seconds": round(self.queue_seconds, 6),
            "forward_seconds": round(self.forward_seconds, 6),
            "allowed_token_mass": self.allowed_token_mass,
        }


def usage_of(scored: Sequence[Scored], *, queue_seconds: float, forward_seconds: float) -> Usage:
    """Return the usage of one request's decisions, one or more."""
    return Usage(
        decisions=len(scored),
        input_tokens=sum(score.input_tokens for score in scored),
        cached_tokens=sum(score.cached_tokens for score in scored),
        queue_seconds=queue_seconds,
        forward_seconds=forward_seconds,
        allowed_token_mass=min(score.allowed_token_mass for score in scored),
    )
