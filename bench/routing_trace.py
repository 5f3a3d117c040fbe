"""Traces of requests: what a request costs an adapter that holds its state, and one that does not.

A trace is a file of JSON lines, one for each request in the order of their times, with the fields
of `Request`. `record` measures costs on a live adapter, and the workloads make traces of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ballot import wire
from ballot.decision import Decision, Option
from ballot.decision import Request as Body
from bench import decisions
from bench.http_client import JSON, Connection
from bench.rows import BenchError

# SageMaker's smallest: what it looks at of a body.
PREFIX_BYTES = 1024
# Of the made-up documents: long enough that their first 1,024 bytes are theirs alone.
SHORTEST, LONGEST = 300, 1_000
DOCUMENTS = 24
QUESTIONS = 4
# As many as a default adapter keeps of the longest documents of a small model.
_AT_ONCE = 12
# Of a trace: enough for its parts to have some.
FEWEST = 100
# What an instance without any state in memory would be kept busy with, of its time.
COLD_LOAD = 0.7


@dataclass(frozen=True)
class Cost:
    """What one question about one document costs, with its state in memory (warm) or not (cold)."""

    prefix: str
    document: int
    state_bytes: int
    cold_tokens: int
    warm_tokens: int
    cold_seconds: float
    warm_seconds: float


@dataclass(frozen=True)
class Request:
    """A line of a trace: when it comes, in seconds, what SageMaker sees of it, and its costs.

    `prefix` stands for the first bytes of the body, and `state` for the state: equal where these
    are. Tokens are those that have to be decoded, and seconds how long that takes: warm where the
    state is in memory, and cold where it is not.
    """

    time: float
    prefix: str
    state: str
    state_bytes: int
    cold_tokens: int
    warm_tokens: int
    cold_seconds: float
    warm_seconds: float


Record = TypeVar("Record", Cost, Request)
_TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}


def read_trace(path: Path) -> list[Request]:
    """Read a trace.

    Raises:
        BenchError: a line is no request, or comes before the one above it; or there are too few.
    """
    trace = read_lines(path, Request)
    if len(trace) < FEWEST:
        raise BenchError(f"{path} has {len(trace)} requests; a trace needs {FEWEST}")
    for number, (earlier, later) in enumerate(itertools.pairwise(trace), start=2):
        if later.time < earlier.time:
            raise BenchError(f"{path}, line {number}: its time is before that of the line above")
    return trace


def write_lines(path: Path, records: Sequence[Cost] | Sequence[Request]) -> None:
    """Write records as JSON lines."""
    path.write_text("".join(f"{json.dumps(dataclasses.asdict(one))}\n" for one in records))


def read_lines(path: Path, kind: type[Record]) -> list[Record]:
    """Read the records that `write_lines` wrote.

    Raises:
        BenchError: a line is no such record.
    """
    records = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            record = kind(**json.loads(line))
            for field in dataclasses.fields(record):
                _check_type(field, getattr(record, field.name))
        except (ValueError, TypeError) as error:
            raise BenchError(f"{path}, line {number}: {error}") from error
        records.append(record)
    return records


def _check_type(field: dataclasses.Field[Any], value: object) -> None:
    # The modules' annotations are text.
    if not isinstance(value, _TYPES[str(field.type)]):
        raise TypeError(f"{field.name} must be {field.type}, not {value!r}")
    if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{field.name} must be finite and not below 0, not {value!r}")


def prefix_of(body: bytes, *, length: int = PREFIX_BYTES) -> str:
    """Return a name for the first bytes of a body."""
    return hashlib.sha256(body[:length]).hexdigest()[:16]


def record(connection: Connection, writer: decisions.Writer) -> list[Cost]:
    """Ask a live adapter about made-up documents, cold and warm, and return what that cost.

    The bodies are those that the `ballot` client sends. The adapter must be fresh.

    Raises:
        BenchError: it refused one, or kept no state.
    """
    source = random.Random("documents")
    documents = [
        writer.state(source.randrange(SHORTEST, LONGEST), seed=f"routing/{at}")
        for at in range(DOCUMENTS)
    ]
    numbered = list(enumerate(documents))
    return [
        cost
        for start in range(0, DOCUMENTS, _AT_ONCE)
        for cost in _record_some(connection, numbered[start : start + _AT_ONCE])
    ]


def _record_some(connection: Connection, documents: Sequence[tuple[int, str]]) -> Iterator[Cost]:
    """Ask about each document in turn, so that its state comes out of the cache."""
    bodies = {
        (at, question): _body(decisions.ask(text, question + at), f"{at}-{question}")
        for at, text in documents
        for question in range(QUESTIONS)
    }
    cold = {}
    state_bytes = {}
    for at, _ in documents:
        before = _cache_bytes(connection)
        cold[at] = _ask(connection, bodies[at, 0])
        state_bytes[at] = _cache_bytes(connection) - before
    warm = {
        (at, question): _ask(connection, bodies[at, question])
        for question in range(QUESTIONS)
        for at, _ in documents
    }
    for (at, question), result in warm.items():
        if state_bytes[at] <= 0:
            raise BenchError("the adapter does not keep the states of this model")
        yield Cost(
            prefix=prefix_of(bodies[at, question]),
            document=at,
            state_bytes=state_bytes[at],
            cold_tokens=result["input_tokens"] - cold[at]["cached_tokens"],
            warm_tokens=result["input_tokens"] - result["cached_tokens"],
            cold_seconds=_seconds(result) + _seconds(cold[at]) - _seconds(warm[at, 0]),
            warm_seconds=_seconds(result),
        )


def _body(decision: Any, id: str) -> bytes:
    options = tuple(Option(option.id, option.description) for option in decision.options)
    sent = Decision(id=id, state=decision.state, question=decision.question, options=options)
    return wire.encode(Body((sent,), single=True).as_json())


def _ask(connection: Connection, body: bytes) -> dict[str, Any]:
    reply = connection.post("/invocations", body)
    if reply.status != 200:
        raise BenchError(f"the adapter answered {reply.status}: {reply.body.decode()}")
    result: dict[str, Any] = json.loads(reply.body)["result"]
    return result


def _seconds(result: dict[str, Any]) -> float:
    return float(result["timing"]["forward_seconds"])


def _cache_bytes(connection: Connection) -> int:
    text = connection.ask("GET", "/metrics", b"", JSON).body.decode()
    name = "ballot_state_cache_bytes "
    return int(float(next(line for line in text.splitlines() if line.startswith(name)).split()[1]))


# -- Workloads: which document is asked about, when ------------------------------------------------

REQUESTS_AN_INSTANCE = 2_000
CATALOGUE = 400
# How popular documents are: the second is asked about half as often as the first, and so on.
ZIPF = 1.0
HOT_SHARE = 0.6
QUESTIONS_A_TICKET = 6
SECONDS_BETWEEN = 10.0


@dataclass(frozen=True)
class Visit:
    """A question about a document: which document, at what time, in seconds."""

    time: float
    document: int


def catalogue(source: random.Random, span: float, count: int) -> list[Visit]:
    """Documents that stay, some of them popular and most of them not."""
    weights = [1 / (rank + 1) ** ZIPF for rank in range(CATALOGUE)]
    asked = source.choices(range(CATALOGUE), weights, k=count)
    return [Visit(time, at) for time, at in zip(_times(source, span, count), asked, strict=True)]


def tickets(source: random.Random, span: float, count: int) -> list[Visit]:
    """Ever new documents, each asked about some times within a minute or so."""
    visits = []
    for at, start in enumerate(_times(source, span, count // QUESTIONS_A_TICKET)):
        time = start
        for _ in range(QUESTIONS_A_TICKET):
            visits.append(Visit(time, at))
            time += source.expovariate(1 / SECONDS_BETWEEN)
    return sorted(visits, key=lambda visit: visit.time)


def hot(source: random.Random, span: float, count: int) -> list[Visit]:
    """One document that most questions are about, and a catalogue beside it."""
    return [
        Visit(visit.time, CATALOGUE) if source.random() < HOT_SHARE else visit
        for visit in catalogue(source, span, count)
    ]


def fresh(source: random.Random, span: float, count: int) -> list[Visit]:
    """Every document once."""
    return [Visit(time, at) for at, time in enumerate(_times(source, span, count))]


WORKLOADS: dict[str, Callable[[random.Random, float, int], list[Visit]]] = {
    "catalogue": catalogue,
    "tickets": tickets,
    "hot": hot,
    "fresh": fresh,
}


def make_trace(workload: str, costs: Sequence[Cost], *, instances: int) -> list[Request]:
    """Return a trace that keeps so many instances busy `COLD_LOAD` of their time without memory.

    A document beyond those that were recorded is another one of the same costs.
    """
    source = random.Random(workload)
    mean = sum(cost.cold_seconds for cost in costs) / len(costs)
    span = mean * REQUESTS_AN_INSTANCE / COLD_LOAD
    by_document: dict[int, list[Cost]] = {}
    for cost in costs:
        by_document.setdefault(cost.document, []).append(cost)
    trace = []
    for visit in WORKLOADS[workload](source, span, REQUESTS_AN_INSTANCE * instances):
        again, document = divmod(visit.document, len(by_document))
        cost = source.choice(by_document[document])
        trace.append(
            Request(
                time=visit.time,
                prefix=f"{cost.prefix}-{again}",
                state=f"{document}-{again}",
                state_bytes=cost.state_bytes,
                cold_tokens=cost.cold_tokens,
                warm_tokens=cost.warm_tokens,
                cold_seconds=cost.cold_seconds,
                warm_seconds=cost.warm_seconds,
            )
        )
    return trace


def _times(source: random.Random, span: float, count: int) -> list[float]:
    """Return times at which independent callers come, in order (a Poisson process)."""
    return sorted(source.uniform(0, span) for _ in range(count))
