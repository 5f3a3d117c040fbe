"""What the endurance run asks: valid requests of every kind, and invalid ones with their codes."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapter.decision import Decision
from bench.adapter_side import encode
from bench.bare_side import BareSide
from bench.decisions import QUESTIONS, Writer, as_json, ask
from bench.http_client import JSON

INVOCATIONS, SYSTEM_ONE = "/invocations", "/v1/systemone"
LINES = {"content-type": "application/jsonlines"}
GZIPPED = {**JSON, "content-encoding": "gzip"}

HOT_STATES = 6
HOT_TOKENS = 300
# From what is hardly worth keeping to a page of text.
SHORTEST, LONGEST = 30, 400
QUESTIONS_AT_ONCE = 5
LONG_REQUESTS = 4
# How often each kind is drawn, out of their sum.
WEIGHTS = {
    "fresh": 30,
    "hot": 25,
    "several": 12,
    "system-one": 14,
    "criterion-first": 6,
    "two-orders": 6,
    "lines": 6,
    "long": 1,
}


@dataclass(frozen=True)
class Refusal:
    """The status and the code that an invalid request gets."""

    status: int
    code: str


@dataclass(frozen=True)
class Ask:
    """A request; `refusal` is what an invalid one has to get. `name` is its own among all."""

    name: str
    body: bytes
    path: str = INVOCATIONS
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    refusal: Refusal | None = None

    @property
    def has_lines(self) -> bool:
        """Whether each line of the body is a request of its own."""
        return self.headers is LINES


@dataclass(frozen=True)
class Mix:
    """All requests there are: the valid ones by kind, and the invalid ones."""

    valid: Mapping[str, Sequence[Ask]]
    invalid: Sequence[Ask]

    def draw(self, source: random.Random) -> Ask:
        """Return a valid request, of a kind drawn by its weight."""
        (kind,) = source.choices(list(self.valid), [WEIGHTS[kind] for kind in self.valid])
        return source.choice(self.valid[kind])

    @property
    def all_valid(self) -> list[Ask]:
        """Every valid request once."""
        return [ask for asks in self.valid.values() for ask in asks]


def write_mix(bare: BareSide, *, states: int, context_tokens: int) -> Mix:
    """Write requests about so many states that are seldom asked about, and `HOT_STATES` that are.

    The same model and numbers give the same requests.
    """
    writer = Writer(bare.count_tokens)
    hot = [writer.state(HOT_TOKENS, seed=f"endurance/hot/{at}") for at in range(HOT_STATES)]
    source = random.Random("endurance")
    fresh = [
        writer.state(source.randrange(SHORTEST, LONGEST), seed=f"endurance/{at}")
        for at in range(states)
    ]
    valid = {
        "fresh": [_one("fresh", at, ask(state, at)) for at, state in enumerate(fresh)],
        "hot": [
            _one("hot", at * QUESTIONS + question, ask(state, question))
            for at, state in enumerate(hot)
            for question in range(QUESTIONS)
        ],
        "several": [_several(at, state, hot) for at, state in enumerate(fresh[::4])],
        "system-one": [_system_one(at, state) for at, state in enumerate(fresh[1::4])],
        "criterion-first": [
            _scored("criterion-first", at, ask(state, at % 3), {"layout": "criterion_first"})
            for at, state in enumerate(fresh[2::4])
        ],
        "two-orders": [
            _scored("two-orders", at, ask(state, at), {"orders": 2})
            for at, state in enumerate(fresh[3::4])
        ],
        "lines": [_lines(at, state, hot) for at, state in enumerate(fresh[::8])],
        "long": [_long(at, writer, bare, context_tokens) for at in range(LONG_REQUESTS)],
    }
    return Mix(valid, invalid_requests(context_tokens))


def _one(kind: str, number: int, decision: Decision) -> Ask:
    body = json.dumps({"decision": as_json(decision)}).encode()
    if number % 8 == 7:
        return Ask(f"{kind}-{number}", gzip.compress(body, mtime=0), headers=GZIPPED)
    return Ask(f"{kind}-{number}", body)


def _several(number: int, state: str, hot: Sequence[str]) -> Ask:
    """Some questions about one state, and one about another."""
    decisions = [ask(state, number + at) for at in range(QUESTIONS_AT_ONCE)]
    other = ask(hot[number % len(hot)], number + QUESTIONS_AT_ONCE)
    return Ask(f"several-{number}", encode([*decisions, other], layout=None))


def _scored(kind: str, number: int, decision: Decision, scoring: dict[str, Any]) -> Ask:
    request = {"decision": as_json(decision), "scoring": scoring}
    return Ask(f"{kind}-{number}", json.dumps(request).encode())


def _system_one(number: int, state: str) -> Ask:
    path = SYSTEM_ONE if number % 2 else INVOCATIONS
    return Ask(f"system-one-{number}", json.dumps(_questions(number, state)).encode(), path)


def _questions(number: int, state: str) -> dict[str, Any]:
    return {
        "state": {"ticket": number, "text": state},
        "questions": {
            "known": {"type": "noul", "instructions": "Did the writer order before?"},
            "team": {
                "type": "choice",
                "instructions": "Which team takes it?",
                "criteria": {
                    "billing": "Invoices and refunds.",
                    "delivery": "Parcels.",
                    "other": None,
                },
            },
            "urgency": {
                "type": "score",
                "instructions": "How urgent is it?",
                "criteria": ["It can wait.", "It should be seen today.", "It is urgent now."],
            },
        },
    }


def _lines(number: int, state: str, hot: Sequence[str]) -> Ask:
    """Each wire format once, and between them a line that is no request."""
    requests: list[Any] = [
        {"decision": as_json(ask(state, number))},
        {"decision": {"id": f"line-{number}"}},
        _questions(number, state),
        {"decisions": [as_json(ask(hot[number % len(hot)], number + at)) for at in range(2)]},
    ]
    body = "".join(f"{json.dumps(request)}\n" for request in requests)
    return Ask(f"lines-{number}", body.encode(), headers=LINES)


def _long(number: int, writer: Writer, bare: BareSide, context_tokens: int) -> Ask:
    """A question about a state that leaves no room for another sentence."""
    prompt = sum(map(len, bare.segments(ask("A state.", number))))
    words = writer.state(context_tokens, seed=f"endurance/long/{number}").split()

    def fits(count: int) -> bool:
        return prompt + bare.count_tokens(" ".join(words[:count])) <= context_tokens

    return _one("long", number, ask(" ".join(words[: _largest(fits, len(words))]), number))


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, when all smaller ones do."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


_OPTIONS = [{"id": "a", "description": "Yes."}, {"id": "b", "description": "No."}]
_DECISION = {"id": "d", "state": "A state.", "question": "Is it so?", "options": _OPTIONS}
_NOUL = {"type": "noul", "instructions": "Is it so?"}
_MEBIBYTE = 1 << 20


def invalid_requests(context_tokens: int) -> list[Ask]:
    """Return requests that are wrong in one way each, with what docs/errors.md says they get."""
    valid = _body(_DECISION)
    bodies = [
        ("invalid_json", valid[:-1]),
        ("invalid_json", b""),
        ("invalid_encoding", valid.replace(b"A state.", b"\xff")),
        ("invalid_number", valid.replace(b'"A state."', b"1e999")),
        ("invalid_string", valid.replace(b"A state.", rb"\ud800")),
        ("duplicate_key", valid.replace(b'"id": "d"', b'"id": "d", "id": "e"')),
        ("too_deep", valid.replace(b'"A state."', b"[" * 99 + b"]" * 99)),
        ("ambiguous_request", json.dumps({"decision": _DECISION, "decisions": []}).encode()),
        ("missing_field", _body({**_DECISION}, without="question")),
        ("unknown_field", _body({**_DECISION, "answer": "a"})),
        ("wrong_type", _body({**_DECISION, "question": 1})),
        ("empty_value", _body({**_DECISION, "question": " "})),
        ("too_few_items", _body({**_DECISION, "options": _OPTIONS[:1]})),
        ("duplicate_id", _body({**_DECISION, "options": _OPTIONS[:1] * 2})),
        ("id_too_long", _body({**_DECISION, "id": "d" * 257})),
        ("too_many_decisions", json.dumps({"decisions": [_DECISION] * 65}).encode()),
        (
            "unsupported_value",
            json.dumps({"decision": _DECISION, "scoring": {"orders": 3}}).encode(),
        ),
    ]
    refused = [_refused(body, 400, code) for code, body in bodies]
    too_long = _body({**_DECISION, "state": "word " * 2 * context_tokens})
    bomb = gzip.compress(_body({**_DECISION, "state": "a" * _MEBIBYTE}), mtime=0)
    refused += [
        _refused(too_long, 413, "too_many_tokens"),
        _refused(bomb, 413, "body_too_large", headers=GZIPPED),
        _refused(valid, 400, "invalid_encoding", headers=GZIPPED),
        _refused(valid, 415, "unsupported_encoding", headers={**JSON, "content-encoding": "br"}),
        _refused(valid, 415, "unsupported_media_type", headers={"content-type": "text/plain"}),
        _refused(valid, 404, "not_found", path="/invocations/"),
        _refused(b"", 405, "method_not_allowed", method="GET"),
    ]
    for path in (INVOCATIONS, SYSTEM_ONE):
        refused += [
            _refused(_asked("", {"q": _NOUL}, model="another"), 400, "unknown_model", path=path),
            _refused(_asked("", {}), 422, "too_few_items", path=path),
            _refused(_asked("", {"q": {"type": "essay"}}), 422, "unsupported_value", path=path),
            _refused(_asked(None, {"q": _NOUL}), 422, "wrong_type", path=path),
        ]
    return refused


def _refused(
    body: bytes,
    status: int,
    code: str,
    *,
    path: str = INVOCATIONS,
    method: str = "POST",
    headers: Mapping[str, str] = JSON,
) -> Ask:
    name = f"{code} {path}"
    return Ask(name, body, path, method=method, headers=headers, refusal=Refusal(status, code))


def _body(decision: dict[str, Any], *, without: str = "") -> bytes:
    kept = {name: value for name, value in decision.items() if name != without}
    return json.dumps({"decision": kept}).encode()


def _asked(state: Any, questions: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"state": state, "questions": questions, **more}).encode()
