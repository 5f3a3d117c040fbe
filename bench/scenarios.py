"""The rows of `make bench`: what is asked, of which sides, in turns, and what is wanted of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from adapter.decision import Decision
from bench.adapter_side import AdapterSide, Answer
from bench.bare import Tokens
from bench.bare_side import BareSide
from bench.decisions import FIVE_OPTIONS, QUESTIONS, Writer, ask, write
from bench.http_client import Connection
from bench.peer_side import PeerSide
from bench.rows import (
    ADAPTER,
    LIMIT,
    PEER,
    REFERENCE,
    BenchError,
    Curve,
    Outcome,
    Row,
    Target,
    at_most,
    compare,
)
from bench.stats import alternate, exactly, paired_ratio, spread

SHORT = 30
LONG = 1_500
MIDDLE = 600
CALLERS = 8
# The seconds that HTTP, parsing and the queue may add to the decodes of a short decision.
OVERHEAD_SECONDS = 0.003
LENGTHS = (128, 256, 512, 1_024, 2_048, 3_000)

Side = Callable[[int], float]


@dataclass(frozen=True)
class Sides:
    """What takes turns, and the paths and settings that start-up rows need."""

    gguf: Path
    gpu_layers: int
    adapter: AdapterSide
    bare: BareSide
    peer: PeerSide | None
    writer: Writer

    def with_peer(
        self, sides: dict[str, Side], peer: Callable[[PeerSide, int], float]
    ) -> dict[str, Side]:
        """Return `sides` and, where there is a llama-server, it too."""
        running = self.peer
        return sides if running is None else {**sides, PEER: lambda at: peer(running, at)}

    def tokens(self, answers: Sequence[Answer]) -> str:
        """Return how many tokens the sides decoded for their last answers."""
        note = answers[-1].tokens
        last = self.peer.last if self.peer is not None else None
        return note if last is None else f"{note}; {last.tokens}"

    def unrelated(self, seed: str) -> None:
        """Have the adapter and the peer think of something else."""
        decision = self.writer.decision(SHORT, seed=seed)
        self.adapter.ask(decision)
        if self.peer is not None:
            self.peer.ask(decision)


@dataclass(frozen=True)
class Plan:
    """How often each row's sides take turns: as the row says, or as often as REPEAT."""

    repeat: int | None = None

    def times(self, usual: int) -> int:
        """Return how often."""
        return usual if self.repeat is None else self.repeat


def fresh_short(sides: Sides, plan: Plan) -> Outcome:
    """A decision about a short state that was never seen."""
    decisions = [
        sides.writer.decision(SHORT, seed=f"fresh-short/{at}", question=at)
        for at in range(plan.times(24))
    ]
    prompts = [sides.bare.segments(decision) for decision in decisions]
    answers: list[Answer] = []

    def adapter(at: int) -> float:
        answers.append(sides.adapter.ask(decisions[at]))
        return answers[-1].seconds

    samples = alternate(
        sides.with_peer(
            {
                ADAPTER: adapter,
                REFERENCE: lambda at: sides.bare.reference(_joined(prompts[at])),
                LIMIT: lambda at: sides.bare.limit(prompts[at][0], (), [_joined(prompts[at][1:])]),
            },
            lambda peer, at: peer.ask(decisions[at]).seconds,
        ),
        pairs=len(decisions),
    )
    targets = {
        REFERENCE: at_most(0.85),
        LIMIT: at_most(1.05, plus_seconds=OVERHEAD_SECONDS),
        PEER: at_most(1.03),
    }
    note = sides.tokens(answers)
    return Outcome(compare("fresh-short", "a fresh short decision", samples, targets, note=note))


def shared_long(sides: Sides, plan: Plan) -> Outcome:
    """Sixteen questions on one long state, in one request."""
    requests = [
        [ask(sides.writer.state(LONG, seed=f"shared-long/{at}"), n) for n in range(QUESTIONS)]
        for at in range(plan.times(3))
    ]
    prompts = [[sides.bare.segments(decision) for decision in request] for request in requests]
    answers: list[Answer] = []

    def adapter(at: int) -> float:
        answers.append(sides.adapter.ask(*requests[at]))
        return answers[-1].seconds

    samples = alternate(
        sides.with_peer(
            {
                ADAPTER: adapter,
                REFERENCE: lambda at: sides.bare.reference_shared(
                    _joined(prompts[at][0][:-1]), _lasts(prompts[at])
                ),
                LIMIT: lambda at: sides.bare.limit(
                    prompts[at][0][0], _joined(prompts[at][0][1:-1]), _lasts(prompts[at])
                ),
            },
            lambda peer, at: peer.ask_each(requests[at]),
        ),
        pairs=len(requests),
    )
    targets = {LIMIT: at_most(1.03), PEER: at_most(1.0)}
    what = f"{QUESTIONS} questions on one long state"
    return Outcome(compare("shared-long", what, samples, targets, note=sides.tokens(answers)))


def state_again(sides: Sides, plan: Plan) -> Outcome:
    """A long state that was asked about before, with something else in between."""
    state = sides.writer.state(LONG, seed="state-again")
    first = ask(state, QUESTIONS - 1)
    sides.adapter.ask(first)
    if sides.peer is not None:
        sides.peer.ask(first)
    decisions = [ask(state, at) for at in range(plan.times(5))]
    prompts = [sides.bare.segments(decision) for decision in decisions]
    answers: list[Answer] = []

    def adapter(at: int) -> float:
        sides.unrelated(f"state-again/{at}")
        answers.append(sides.adapter.ask(decisions[at]))
        return answers[-1].seconds

    samples = alternate(
        sides.with_peer(
            {
                ADAPTER: adapter,
                REFERENCE: lambda at: sides.bare.reference(_joined(prompts[at])),
                LIMIT: lambda at: sides.bare.limit(
                    _joined(prompts[at][:-1]), (), [prompts[at][-1]]
                ),
            },
            lambda peer, at: peer.ask(decisions[at]).seconds,
        ),
        pairs=len(decisions),
    )
    targets = {REFERENCE: at_most(0.1), PEER: at_most(1.0)}
    what = "the same long state in a later request"
    return Outcome(compare("state-again", what, samples, targets, note=sides.tokens(answers)))


def interleaved(sides: Sides, plan: Plan) -> Outcome:
    """Twenty states of middle length, each asked five questions, in five rounds over all."""
    states = [sides.writer.state(MIDDLE, seed=f"interleaved/{at}") for at in range(plan.times(20))]
    answers: list[Answer] = []

    def adapter(decision: Decision) -> float:
        answers.append(sides.adapter.ask(decision))
        return answers[-1].seconds

    asked: dict[str, Callable[[Decision], float]] = {ADAPTER: adapter}
    if (peer := sides.peer) is not None:
        asked[PEER] = lambda decision: peer.ask(decision).seconds
    samples = {name: [0.0] * len(states) for name in asked}
    for question in range(5):
        decisions = [ask(state, question) for state in states]
        for name, each in alternate(
            {name: _of(one, decisions) for name, one in asked.items()}, pairs=len(decisions)
        ).items():
            samples[name] = [
                so_far + more for so_far, more in zip(samples[name], each, strict=True)
            ]
    what = f"{len(states)} states of {MIDDLE} tokens, 5 questions each, interleaved"
    note = f"last round: {sides.tokens(answers)}"
    rows = compare("interleaved", what, samples, {PEER: at_most(1.0)}, note=note)
    return Outcome(rows or [_alone("interleaved", what, samples[ADAPTER], note)])


def _of(one: Callable[[Decision], float], decisions: Sequence[Decision]) -> Side:
    return lambda at: one(decisions[at])


def _alone(name: str, what: str, seconds: Sequence[float], note: str) -> Row:
    """Return the row of a scenario whose other side is not there."""
    ours = spread(seconds)
    return Row(name, what, "nothing", ours, unit="s", ours=ours, note=note)


def criterion_first(sides: Sides, plan: Plan) -> Outcome:
    """One fixed question of five options about fresh short states, the question first."""
    every = 8
    states = [
        sides.writer.state(SHORT, seed=f"criterion-first/{at}")
        for at in range(plan.times(25) * every)
    ]
    decisions = [write(state, *FIVE_OPTIONS) for state in states]
    layout = "criterion_first"
    prompts = [sides.bare.segments(decision, layout=layout) for decision in decisions[::every]]
    answers: list[Answer] = []

    def adapter(at: int) -> float:
        # The reference path takes its turn at every eighth state: it is the slow one.
        several = [
            sides.adapter.ask(decision, layout=layout)
            for decision in decisions[at * every : (at + 1) * every]
        ]
        answers.extend(several)
        return spread(answer.seconds for answer in several).median

    samples = alternate(
        {
            ADAPTER: adapter,
            REFERENCE: lambda at: sides.bare.reference(
                _joined(sides.bare.segments(decisions[at * every]))
            ),
            LIMIT: lambda at: sides.bare.limit(_joined(prompts[at][:-1]), (), [prompts[at][-1]]),
        },
        pairs=len(decisions) // every,
    )
    what = f"criterion_first, a fixed question of five options, {len(states)} fresh short states"
    targets = {REFERENCE: at_most(0.5)}
    return Outcome(compare("criterion-first", what, samples, targets, note=sides.tokens(answers)))


def moves(sides: Sides, plan: Plan) -> Outcome:
    """How far an answer moves when it is asked for again, under load and caching."""
    count = plan.times(10)
    decisions = [
        sides.writer.decision(SHORT if at % 2 else MIDDLE, seed=f"moves/{at}", question=at)
        for at in range(count)
    ]

    def adapter(decision: Decision, connection: Connection) -> dict[str, float]:
        (result,) = sides.adapter.ask(decision, connection=connection).results
        return dict(zip(result["option_ids"], result["option_logits"], strict=True))

    ours = _asked_again(adapter, sides.adapter.connect, decisions)
    exact = Target("exactly", 0.0)
    rows = [_move_row(ADAPTER, ours, target=exact)]
    if (peer := sides.peer) is not None:

        def server(decision: Decision, connection: Connection) -> dict[str, float]:
            return peer.ask(decision, connection=connection).logprobs

        rows.append(_move_row(PEER, _asked_again(server, peer.connect, decisions), target=None))
    return Outcome(rows)


Scores = dict[str, float]


def _asked_again(
    one: Callable[[Decision, Connection], Scores],
    connect: Callable[[], Connection],
    decisions: Sequence[Decision],
) -> list[tuple[float, bool]]:
    """Return how far each decision's scores moved, and whether the best one changed.

    Asked once in order, then backwards, then by several callers at once.
    """
    with connect() as connection:
        first = [one(decision, connection) for decision in decisions]
        backwards = [one(decision, connection) for decision in reversed(decisions)][::-1]

    def alone(decision: Decision) -> Scores:
        with connect() as connection:
            return one(decision, connection)

    with ThreadPoolExecutor(CALLERS) as callers:
        under_load = list(callers.map(alone, decisions))
    again = zip(first, backwards, under_load, strict=True)
    return [
        (max(move(one, other) for other in others), any(_best(one) != _best(o) for o in others))
        for one, *others in again
    ]


def move(one: Scores, other: Scores) -> float:
    """Return the largest difference between the scores that both have; infinite if none."""
    both = one.keys() & other.keys()
    return max((abs(one[key] - other[key]) for key in both), default=math.inf)


def _best(scores: Scores) -> str:
    return max(scores, key=scores.__getitem__, default="")


def _move_row(whose: str, moved: list[tuple[float, bool]], *, target: Target | None) -> Row:
    sizes = [size for size, _ in moved]
    flips = sum(flipped for _, flipped in moved)
    note = f"median {spread(sizes).median:.3g}; {flips} of {len(moved)} top answers changed"
    return Row(
        name="moves",
        what=f"largest move of an answer asked again: {whose}",
        against="its first answer",
        value=exactly(max(sizes), count=len(sizes)),
        target=target,
        unit="logit",
        note=note,
    )


def callers(sides: Sides, plan: Plan) -> Outcome:
    """Eight callers at once against one caller back to back."""
    refused: list[BenchError] = []

    def block(number: int) -> Side:
        def seconds_per_token(at: int) -> float:
            decisions = [
                sides.writer.decision(SHORT, seed=f"callers/{number}/{at}/{item}", question=item)
                for item in range(CALLERS * 4)
            ]
            return _seconds_per_token(sides.adapter, decisions, number, refused)

        return seconds_per_token

    samples = alternate({"one": block(1), "several": block(CALLERS)}, pairs=plan.times(4))
    throughput = Row(
        name="callers",
        what=f"throughput of {CALLERS} callers",
        against="one caller back to back",
        value=paired_ratio(samples["one"], samples["several"]),
        target=Target("at least", 0.97),
        ours=spread(samples["several"]),
        theirs=spread(samples["one"]),
        note="seconds are for one decoded token",
    )
    nothing_refused = Row(
        name="callers",
        what=f"requests of {CALLERS} callers that were refused",
        against="none",
        value=exactly(len(refused)),
        target=Target("exactly", 0.0),
        unit="requests",
    )
    return Outcome([throughput, nothing_refused])


def _seconds_per_token(
    adapter: AdapterSide, decisions: Sequence[Decision], callers: int, refused: list[BenchError]
) -> float:
    """Return what a decoded token cost when so many callers shared the decisions."""

    def ask_all(share: Sequence[Decision]) -> int:
        tokens = 0
        with adapter.connect() as connection:
            for decision in share:
                try:
                    tokens += adapter.ask(decision, connection=connection).decoded_tokens
                except BenchError as error:
                    refused.append(error)
        return tokens

    shares = [decisions[caller::callers] for caller in range(callers)]
    with ThreadPoolExecutor(callers) as pool:
        start = time.perf_counter()
        tokens = sum(pool.map(ask_all, shares))
        return (time.perf_counter() - start) / tokens


def by_length(sides: Sides, plan: Plan) -> Outcome:
    """What a fresh decision costs by the length of its state."""
    lines: dict[str, list[tuple[float, float]]] = {ADAPTER: [], LIMIT: []}
    rows = []
    for length in LENGTHS:
        decisions = [
            sides.writer.decision(length, seed=f"by-length/{length}/{at}", question=at)
            for at in range(plan.times(3 if length <= 512 else 1))
        ]
        prompts = [sides.bare.segments(decision) for decision in decisions]
        samples = alternate(
            {
                ADAPTER: _of(lambda one: sides.adapter.ask(one).seconds, decisions),
                LIMIT: _limit_of(sides.bare, prompts),
            },
            pairs=len(decisions),
        )
        tokens = spread(len(_joined(prompt)) for prompt in prompts).median
        for name, line in lines.items():
            line.append((tokens, spread(samples[name]).median * 1000))
        rows += compare("by-length", f"a fresh state of {length} tokens", samples, {})
    curve = Curve("Cost of a fresh decision", "tokens in the prompt", "ms", lines)
    return Outcome(rows, [curve])


def _limit_of(bare: BareSide, prompts: Sequence[Sequence[Tokens]]) -> Side:
    return lambda at: bare.limit(prompts[at][0], (), [_joined(prompts[at][1:])])


def _joined(segments: Sequence[Tokens]) -> Tokens:
    return tuple(token for segment in segments for token in segment)


def _lasts(prompts: Sequence[Sequence[Tokens]]) -> list[Tokens]:
    return [prompt[-1] for prompt in prompts]
