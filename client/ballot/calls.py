"""What a client sends and how it reads what comes back, without sending or reading anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import EllipsisType
from typing import Generic, TypeVar

from ballot import chat, systemone, wire
from ballot.decision import Decision, Option, Request, Scoring
from ballot.errors import BallotError, InvalidAnswer, InvalidRequest, error_from_answer, request_id
from ballot.results import Result
from ballot.transport import AsyncStream, Reply, Stream
from ballot.wire import Fields, Json

MAX_DECISIONS = 64
# An endpoint takes bodies of up to 1 MiB unless it is set otherwise.
MAX_BODY_BYTES = 1_000_000
INVOCATIONS, SYSTEM_ONE, CHAT = "/invocations", "/v1/systemone", "/v1/chat/completions"

Answer = TypeVar("Answer")
Opened = TypeVar("Opened", Stream, AsyncStream)
_INDEX = re.compile(r"\bdecisions\[(\d+)\]")


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request: the path, the body, and how to read a successful answer."""

    path: str
    body: bytes
    read: Callable[[Fields], Answer]

    def answer_of(self, reply: Reply) -> Answer:
        """Return what a reply says.

        Raises:
            BallotError: the reply is an error, or not what the contract says.
        """
        if not 200 <= reply.status < 300:
            raise error_from_answer(reply.status, reply.headers, reply.body)
        try:
            return self.read(wire.decode(reply.body))
        except InvalidAnswer as error:
            error.status, error.request_id = reply.status, request_id(reply.headers)
            raise


@dataclass(frozen=True)
class Part:
    """Some of the decisions of a `decide_many`, in one request; `places` are theirs among all."""

    places: tuple[int, ...]
    call: Call[tuple[Result, ...]]

    def relocate(self, error: BallotError) -> None:
        """Let an error that names a decision by its place in the request name its place in all."""
        error.message = self._place_in_all(error.message)
        error.args = (error.message,)
        error.field = error.field and self._place_in_all(error.field)

    def _place_in_all(self, text: str) -> str:
        def place(match: re.Match[str]) -> str:
            index = int(match[1])
            return f"decisions[{self.places[index]}]" if index < len(self.places) else match[0]

        return _INDEX.sub(place, text)


def decision_of(
    decision: Decision | None,
    state: Json | EllipsisType,
    question: str | None,
    options: Mapping[str, str] | Sequence[Option] | None,
    id: str,
) -> Decision:
    """Return the decision, given whole or in its parts.

    Raises:
        TypeError: neither, or both.
    """
    parts = (state is not ..., question is not None, options is not None)
    if decision is not None:
        if any(parts):
            raise TypeError("give a decision, or its state, question and options, not both")
        return decision
    if state is ... or question is None or options is None:
        raise TypeError("a decision needs a state, a question and options")
    if isinstance(options, Mapping):
        options = [Option(id=name, description=text) for name, text in options.items()]
    return Decision(id=id, state=state, question=question, options=tuple(options))


def decide(decision: Decision, scoring: Scoring | None) -> Call[Result]:
    """Return the call that scores one decision."""
    request = Request((decision,), scoring, single=True)

    def read(answer: Fields) -> Result:
        result = Result.from_answer(answer.object("result"))
        _check_is_of(result, decision)
        return result

    return Call(INVOCATIONS, wire.encode(request.as_json()), read)


def decide_many(
    decisions: Sequence[Decision], scoring: Scoring | None, *, per_request: int = MAX_DECISIONS
) -> list[Part]:
    """Return the calls that score the decisions, each of at most `per_request`.

    Raises:
        InvalidRequest: two decisions have the same id; or one cannot be written as JSON.
    """
    _check_ids_differ(decisions)
    return [
        Part(places, _decide_several([decisions[place] for place in places], scoring))
        for places in split(decisions, per_request=per_request)
    ]


def split(
    decisions: Sequence[Decision], *, per_request: int, body_bytes: int = MAX_BODY_BYTES
) -> list[tuple[int, ...]]:
    """Return the places of the decisions of each request, every place once.

    Decisions of equal states stand together, where their first stands, for the endpoint decodes
    a state once a request; they share a request if they fit in one. A request has at most
    `per_request` decisions, and about `body_bytes` unless a single decision has more.
    """
    if per_request < 1:
        raise ValueError(f"per_request must be at least 1, not {per_request}")
    groups: dict[bytes, list[_Block]] = {}
    for place, decision in enumerate(decisions):
        block = _Block((place,), len(wire.encode(decision.as_json())))
        groups.setdefault(wire.encode(decision.state), []).append(block)

    def pack(blocks: Iterable[_Block]) -> list[_Block]:
        return _pack(blocks, per_request=per_request, body_bytes=body_bytes)

    alike = chain.from_iterable(pack(group) for group in groups.values())
    return [block.places for block in pack(alike)]


@dataclass(frozen=True)
class _Block:
    """Decisions that stay together, and the bytes that they take."""

    places: tuple[int, ...]
    size: int


def _pack(blocks: Iterable[_Block], *, per_request: int, body_bytes: int) -> list[_Block]:
    """Join neighbours as long as they fit in one request."""
    packed: list[_Block] = []
    for block in blocks:
        joined = packed and _Block(packed[-1].places + block.places, packed[-1].size + block.size)
        if joined and len(joined.places) <= per_request and joined.size <= body_bytes:
            packed[-1] = joined
        else:
            packed.append(block)
    return packed


def system_one(
    state: Json, questions: Mapping[str, systemone.Question], model: str
) -> Call[systemone.SystemOneAnswer]:
    """Return the call that asks System One questions about a state."""
    body = wire.encode(systemone.request(state, questions, model))

    def read(answer: Fields) -> systemone.SystemOneAnswer:
        answered = systemone.SystemOneAnswer.from_answer(answer)
        if answered.answers.keys() != questions.keys():
            raise InvalidAnswer("the answers are not to the questions", code="invalid_answer")
        return answered

    return Call(SYSTEM_ONE, body, read)


def chat_completion(
    messages: Sequence[Mapping[str, Json]], options: Mapping[str, Json]
) -> Call[chat.ChatAnswer]:
    """Return the call that gets a whole chat answer."""
    body = wire.encode(chat.request(messages, options, stream=False))
    return Call(CHAT, body, chat.ChatAnswer.from_answer)


def chat_stream(messages: Sequence[Mapping[str, Json]], options: Mapping[str, Json]) -> bytes:
    """Return the body of the request that gets a chat answer in pieces, on the path `CHAT`."""
    return wire.encode(chat.request(messages, options, stream=True))


def begun(opened: Reply | Opened) -> Opened:
    """Return the stream that was opened.

    Raises:
        BallotError: the endpoint answered an error in place of it.
    """
    if isinstance(opened, Reply):
        raise error_from_answer(opened.status, opened.headers, opened.body)
    return opened


def _decide_several(
    decisions: Sequence[Decision], scoring: Scoring | None
) -> Call[tuple[Result, ...]]:
    request = Request(tuple(decisions), scoring)

    def read(answer: Fields) -> tuple[Result, ...]:
        results = tuple(map(Result.from_answer, answer.objects("results")))
        if len(results) != len(decisions):
            raise InvalidAnswer(
                f"{len(decisions)} decisions got {len(results)} results", code="invalid_answer"
            )
        for result, decision in zip(results, decisions, strict=True):
            _check_is_of(result, decision)
        return results

    return Call(INVOCATIONS, wire.encode(request.as_json()), read)


def _check_is_of(result: Result, decision: Decision) -> None:
    asked = [option.id for option in decision.options]
    if result.id != decision.id or list(result.option_ids) != asked:
        raise InvalidAnswer(
            f"the result is of another decision than {decision.id!r}", code="invalid_answer"
        )


def _check_ids_differ(decisions: Sequence[Decision]) -> None:
    """Refuse what the endpoint would, whichever requests the two decisions end up in."""
    seen: set[str] = set()
    for place, decision in enumerate(decisions):
        if decision.id in seen:
            raise InvalidRequest(
                f"two decisions have the id {decision.id!r}",
                code="duplicate_id",
                field=f"decisions[{place}].id",
            )
        seen.add(decision.id)
