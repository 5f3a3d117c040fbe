"""What a wire format is to the routes: it parses bodies, and writes answers and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from adapter.decision import Decision, Json, Scoring
from adapter.errors import RequestError
from adapter.scorer import ModelIdentity, Scored


@dataclass(frozen=True)
class Limits:
    """What a request may ask for: decisions in one request, options in one decision."""

    decisions: int
    options: int


@dataclass(frozen=True)
class Terms:
    """On what terms requests are taken.

    `scoring` stands where a request does not say how to score; `model` is what answers, and
    `model_aliases` whether it does so to the hosted service's model names, too.
    """

    limits: Limits
    scoring: Scoring
    model: ModelIdentity
    model_aliases: bool


@dataclass(frozen=True)
class RequestTiming:
    """Seconds that a whole request waited for the worker, was decoded, and took in all."""

    queue_seconds: float
    forward_seconds: float
    total_seconds: float

    def as_json(self) -> dict[str, float]:
        """Return the timing as the wire has it."""
        return {
            "queue_seconds": self.queue_seconds,
            "forward_seconds": self.forward_seconds,
            "total_seconds": self.total_seconds,
        }


class ParsedRequest(Protocol):
    """A valid request: what to score, and how to tell its caller."""

    @property
    def decisions(self) -> tuple[Decision, ...]: ...

    @property
    def scoring(self) -> Scoring: ...

    def path(self, index: int) -> str:
        """Return where in the request its decision number `index` stands."""

    def render(
        self, scored: tuple[Scored, ...], *, model: ModelIdentity, timing: RequestTiming
    ) -> dict[str, Any]:
        """Return the body of the answer, out of one score a decision."""


@dataclass(frozen=True)
class ErrorAnswer:
    """An error as a wire format tells it."""

    status: int
    body: dict[str, Any]


@dataclass(frozen=True)
class WireFormat:
    """One way to ask.

    `parse` raises the `RequestError` that `render_error` then writes, given the request's id;
    `request_id_headers` are the headers that carry that id in every answer.
    """

    parse: Callable[[Json, Terms], ParsedRequest]
    render_error: Callable[[RequestError, str], ErrorAnswer]
    request_id_headers: tuple[str, ...]
