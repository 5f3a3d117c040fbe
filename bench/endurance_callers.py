"""Callers of the endurance run: they ask, wait or hang up, and judge every answer."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Literal

from bench.endurance_mix import Ask, Mix
from bench.http_client import Connection, Reply
from bench.rows import BenchError

# Out of a hundred requests.
INVALID, HANG_UPS, HANG_UPS_IN_BODY = 12, 10, 2

# What says when and how an answer was made, and not what it is.
_ABOUT_THE_ANSWER = {
    "timing",
    "x_timing",
    "cached_tokens",
    "x_cached_tokens",
    "request_id",
    "x_request_id",
}

FaultKind = Literal["differs", "refused", "wrong refusal", "unanswered"]


@dataclass(frozen=True)
class Solo:
    """What a request got when nothing else was asked, and how long it took."""

    answer: Any
    seconds: float


@dataclass(frozen=True)
class Fault:
    """A request that did not get what it has to get."""

    kind: FaultKind
    request: str
    detail: str


@dataclass
class Seen:
    """What one caller, or several, saw: answers by route and outcome, and requests they left.

    `jobs` are what the worker had to do for the answers: one for a request, or for each line.
    """

    answered: Counter[tuple[str, str]] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """How many requests reached the adapter, or were to."""
        return self.answered.total() + self.left.total() + self.count("unanswered")

    def count(self, kind: FaultKind) -> int:
        """How many faults there are of a kind."""
        return sum(fault.kind == kind for fault in self.faults)


def joined(seen: Iterable[Seen]) -> Seen:
    """Return what all of them saw."""
    whole = Seen()
    for one in seen:
        whole.answered += one.answered
        whole.left += one.left
        whole.kinds += one.kinds
        whole.jobs += one.jobs
        whole.faults += one.faults
    return whole


def comparable(ask: Ask, body: bytes) -> Any:
    """Return an answer without what may differ from one time to the next.

    Raises:
        ValueError: it is not JSON.
    """
    if ask.has_lines:
        return [_comparable(json.loads(line)) for line in body.splitlines()]
    return _comparable(json.loads(body))


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _comparable(item) for name, item in value.items() if name not in _ABOUT_THE_ANSWER
        }
    return [_comparable(item) for item in value] if isinstance(value, list) else value


def code_of(body: bytes) -> str:
    """Return the code of an error in either wire format; nothing where it has none."""
    try:
        answer = json.loads(body)
        if "code" in answer:
            return str(answer["code"])
        detail = answer["detail"]
        return str(detail[0]["type"] if isinstance(detail, list) else detail["error_type"])
    except (ValueError, KeyError, TypeError, IndexError):
        return ""


class Caller:
    """Asks one request after another over its own connection until it is told to stop."""

    def __init__(
        self,
        connection: Connection,
        mix: Mix,
        solo: Mapping[str, Solo],
        *,
        seed: str,
        callers: int,
    ) -> None:
        """Draw from `mix`; `solo` has the answer of every valid request by its name."""
        self._connection = connection
        self._mix = mix
        self._solo = solo
        self._source = random.Random(seed)
        mean = sum(one.seconds for one in solo.values()) / len(solo)
        self._usual_wait = mean * callers
        self.seen = Seen()

    def ask_until(self, is_over: Callable[[], bool]) -> Seen:
        """Ask until it is over, and return what was seen."""
        while not is_over():
            self._ask_something()
        return self.seen

    def _ask_something(self) -> None:
        chance = self._source.randrange(100)
        if chance < INVALID:
            self._stay(self._source.choice(self._mix.invalid))
        elif chance < INVALID + HANG_UPS:
            self._hang_up(self._mix.draw(self._source))
        elif chance < INVALID + HANG_UPS + HANG_UPS_IN_BODY:
            self._hang_up_in_body(self._mix.draw(self._source))
        else:
            self._stay(self._mix.draw(self._source))

    def _stay(self, ask: Ask) -> None:
        try:
            reply = self._connection.ask(ask.method, ask.path, ask.body, ask.headers)
        except (OSError, HTTPException) as error:
            self._unanswered(ask, error)
        else:
            self._judge(ask, reply)

    def _hang_up(self, ask: Ask) -> None:
        """Hang up at some time between asking and about when the answer would come."""
        patience = self._source.uniform(0, self._usual_wait + self._solo[ask.name].seconds)
        try:
            reply = self._connection.leave(ask.path, ask.body, ask.headers, after_seconds=patience)
        except (OSError, HTTPException) as error:
            return self._unanswered(ask, error)
        if reply is not None:
            return self._judge(ask, reply)
        self.seen.kinds["hung up"] += 1
        self.seen.left[ask.path] += 1
        return None

    def _hang_up_in_body(self, ask: Ask) -> None:
        try:
            self._connection.leave_in_body(ask.path, ask.body, ask.headers)
        except (OSError, HTTPException) as error:
            return self._unanswered(ask, error)
        self.seen.kinds["hung up in the body"] += 1
        self.seen.left[ask.path] += 1
        return None

    def _unanswered(self, ask: Ask, error: Exception) -> None:
        self._connection.close()
        self.seen.faults.append(Fault("unanswered", ask.name, repr(error)))

    def _judge(self, ask: Ask, reply: Reply) -> None:
        code = "ok" if reply.status == 200 else code_of(reply.body)
        self.seen.answered[_route(ask), code] += 1
        if ask.refusal is not None:
            self.seen.kinds["invalid"] += 1
            if (reply.status, code) != (ask.refusal.status, ask.refusal.code):
                self._fault("wrong refusal", ask, reply)
            return
        self.seen.kinds[ask.name.rpartition("-")[0]] += 1
        if reply.status != 200:
            self._fault("refused", ask, reply)
            return
        self.seen.jobs += _jobs(self._solo[ask.name].answer)
        if not self._is_as_alone(ask, reply.body):
            self._fault("differs", ask, reply)

    def _is_as_alone(self, ask: Ask, body: bytes) -> bool:
        try:
            return bool(comparable(ask, body) == self._solo[ask.name].answer)
        except ValueError:
            return False

    def _fault(self, kind: FaultKind, ask: Ask, reply: Reply) -> None:
        detail = f"{reply.status}: {reply.body.decode(errors='replace')}"
        self.seen.faults.append(Fault(kind, ask.name, detail))


def ask_alone(connection: Connection, mix: Mix) -> dict[str, Solo]:
    """Ask every valid request, one after another; return the answers by the requests' names.

    Raises:
        BenchError: one of them was refused.
    """
    answers = {}
    for ask in mix.all_valid:
        reply = connection.ask(ask.method, ask.path, ask.body, ask.headers)
        if reply.status != 200:
            raise BenchError(f"{ask.name} got {reply.status}: {reply.body.decode()}")
        answers[ask.name] = Solo(comparable(ask, reply.body), reply.seconds)
    return answers


def _jobs(answer: Any) -> int:
    return sum("code" not in line for line in answer) if isinstance(answer, list) else 1


def _route(ask: Ask) -> str:
    """Return the route that the adapter's counters name."""
    return ask.path if ask.refusal is None or ask.refusal.status != 404 else "other"
