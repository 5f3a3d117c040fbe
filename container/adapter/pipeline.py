"""The way of one body, from its bytes to the JSON of its answer.

A request has one, and each line of a request of JSON Lines is one: both go the same way, and so
get the same bits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from adapter import strict_json
from adapter.admission import Permit
from adapter.decision import Decision, Json, Scoring
from adapter.scorer import Scored, combine_orders
from adapter.settings import Settings
from adapter.tokens import Encoded
from adapter.usage import Usage, usage_of
from adapter.wire import Limits, ParsedRequest, RequestTiming, Terms, WireFormat
from adapter.worker import Loaded

Recognize: TypeAlias = Callable[[Json], WireFormat]


class Observer(Protocol):
    """Who is told what was decided; `adapter.metrics.Metrics` is one."""

    def decided(self, decisions: Sequence[Decision], scored: Sequence[Scored]) -> None: ...


@dataclass
class Asked:
    """A body on its way to its answer, and what is known of it so far, also when it fails.

    `recognize` finds the wire format that the parsed body is in; until then `wire` is what the
    route says. `value` is the parsed body, `started` when the request came, by `perf_counter`.
    """

    body: bytes
    recognize: Recognize
    wire: WireFormat
    started: float = field(default_factory=time.perf_counter)
    value: Json = None


@dataclass(frozen=True)
class Prepared:
    """A valid body: what it asks, and its decisions as they are decoded, one an option order."""

    parsed: ParsedRequest
    encoded: tuple[Encoded, ...]
    started: float


@dataclass(frozen=True)
class Answered:
    """The JSON of an answer, and what it cost."""

    body: dict[str, Any]
    usage: Usage


class Pipeline:
    """What prepares and answers bodies, once a model is loaded."""

    def __init__(self, settings: Settings, loaded: Loaded, observer: Observer) -> None:
        self._settings = settings
        self.loaded = loaded
        self._observer = observer
        # Its own: the event loop would wait for the threads of its default one before it ends.
        self._threads = ThreadPoolExecutor(thread_name_prefix="prepare")

    @property
    def limits(self) -> Limits:
        """What one body may ask for."""
        return Limits(
            decisions=self._settings.max_decisions, options=self.loaded.encoder.max_options
        )

    async def prepare(self, asked: Asked, permit: Permit) -> Prepared:
        """Parse and tokenize a body, on another thread; what is learnt of it is left in `asked`.

        Raises:
            RequestError: it is not valid, or there will be no more scoring.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._prepare, asked, permit)

    def _prepare(self, asked: Asked, permit: Permit) -> Prepared:
        asked.value = strict_json.parse(asked.body)
        asked.wire = asked.recognize(asked.value)
        parsed = asked.wire.parse(asked.value, self._terms())
        permit.require_open()
        encoded = tuple(
            encoded
            for index, decision in enumerate(parsed.decisions)
            for encoded in self.loaded.encoder.encode_orders(
                decision, parsed.scoring, field=parsed.path(index)
            )
        )
        return Prepared(parsed, encoded, asked.started)

    async def score(self, prepared: Prepared, permit: Permit) -> Answered:
        """Score what was prepared, and write the answer.

        Raises:
            RequestError: as `Permit.score`.
        """
        parsed = prepared.parsed
        answer = await permit.score(prepared.encoded)
        timing = RequestTiming(
            queue_seconds=answer.queue_seconds,
            forward_seconds=answer.forward_seconds,
            total_seconds=time.perf_counter() - prepared.started,
        )
        scored = self._calibrated(combine_orders(answer.scored, parsed.scoring.orders), parsed)
        self._observer.decided(parsed.decisions, scored)
        return Answered(
            parsed.render(scored, model=self.loaded.identity, timing=timing),
            usage_of(
                scored, queue_seconds=timing.queue_seconds, forward_seconds=timing.forward_seconds
            ),
        )

    def _terms(self) -> Terms:
        return Terms(
            limits=self.limits,
            scoring=Scoring(layout=self._settings.layout, orders=self._settings.orders),
            model=self.loaded.identity,
            model_aliases=self._settings.model_aliases,
        )

    def _calibrated(self, scored: tuple[Scored, ...], parsed: ParsedRequest) -> tuple[Scored, ...]:
        calibration = self.loaded.calibration
        if calibration is None:
            return scored
        return tuple(
            calibration.apply(score, kind=decision.kind, scoring=parsed.scoring)
            for score, decision in zip(scored, parsed.decisions, strict=True)
        )
