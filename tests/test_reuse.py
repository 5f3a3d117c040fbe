"""Reuse: the same decision gives the same bits, whatever memory holds of earlier ones.

What is expected comes from llama.cpp itself: a context made for one decision, which decodes the
decision's segments from the start and is thrown away. Where the model has a sliding window, each
segment but the last is followed by a move into yet another new context, by way of a snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import pytest

from adapter.context import Context
from adapter.decision import Decision, Option
from adapter.engine import (
    BATCH_TOKENS,
    NO_REUSE,
    SNAPSHOTS,
    TAIL_REMOVAL,
    TAIL_REMOVAL_AND_SNAPSHOTS,
    Cancelled,
    Engine,
    Logits,
    Reuse,
    reuse_candidates,
    start_engine,
)
from adapter.errors import ScoringError
from adapter.llama import Model
from adapter.prompt import plain_template, render_template
from adapter.state_cache import Segment, Snapshot, StateCache
from adapter.tokens import Encoded, Encoder
from tests.native_logits import CONTEXT_TOKENS, THREADS, decode_alone

OPTIONS = (Option("a", "Account access."), Option("b", "Billing."), Option("c", "Sales."))
QUESTIONS = ("Which team should answer?", "Which team has the data?", "Who has called before?")
TEXT = (
    "the customer wrote on Monday that an invoice of 12 euros arrived twice; since then our shop "
    "answered slowly, prices were raised and the plan changed to Größe XL in Zürich"
)
WORDS = TEXT.split()


@dataclass
class Bench:
    """A loaded model with an engine on it, and what each decision's logits should be."""

    model: Model
    encoder: Encoder
    context: Context
    reuse: Reuse
    cache: StateCache
    engine: Engine
    expected: dict[tuple[tuple[int, ...], ...], Logits] = field(default_factory=dict)

    def encode(self, state: str, question: int) -> Encoded:
        return self.encoder.encode(Decision("d", state, QUESTIONS[question], OPTIONS))

    def fresh(self, encoded: Encoded) -> Logits:
        """Return the logits that a context made for `encoded` alone gives, once computed."""
        if encoded.segments not in self.expected:
            self.expected[encoded.segments] = decode_alone(self.model, encoded)
        return self.expected[encoded.segments]

    def forget(self) -> None:
        """Empty the context and the cache."""
        self.engine.start_empty()
        for prefix in list(self.cache._entries):
            self.cache.drop(prefix)

    def state_of(self, least_tokens: int, seed: int) -> str:
        """Return a state that is a segment of at least so many tokens, and hardly more."""
        words: list[str] = []
        choices = random.Random(seed)
        while True:
            words += choices.choices(WORDS, k=5)
            segments = self.encode(" ".join(words), 0).segments
            if len(segments) == 3 and len(segments[1]) >= least_tokens:
                return " ".join(words)


@contextmanager
def open_bench(model: Model) -> Iterator[Bench]:
    template = plain_template()
    if model.chat_template is not None:
        template = render_template(model.chat_template, bos_token="<bos>", eos_token="")
    encoder = Encoder(model.vocabulary, template, context_tokens=CONTEXT_TOKENS)
    with closing(
        Context(model, tokens=CONTEXT_TOKENS, threads=THREADS, batch_tokens=BATCH_TOKENS)
    ) as context:
        reuse, *_ = reuse_candidates(is_recurrent=model.is_recurrent, window=model.window_tokens)
        cache = StateCache(max_bytes=1 << 30, max_entries=1000)
        yield Bench(model, encoder, context, reuse, cache, Engine(context, reuse, cache))


@pytest.fixture(scope="module", params=["demo_model", "gemma_model"])
def real(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Real models, plain attention and sliding window, which take a second for 150 tokens."""
    with open_bench(request.getfixturevalue(request.param)) as bench:
        yield bench


@pytest.fixture(scope="module", params=["tiny_model", "hybrid_model"])
def small(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Generated models, plain attention and hybrid, which take no time."""
    with open_bench(request.getfixturevalue(request.param)) as bench:
        yield bench


def never() -> bool:
    return False


def cancel_after(decodes: int, bench: Bench, encoded: Encoded) -> None:
    """Start on `encoded` and give it up after so many decodes."""
    calls = count()
    with pytest.raises(Cancelled):
        bench.engine.forward(encoded, lambda: next(calls) == decodes)
    assert next(calls) == decodes + 1


def check_forward(bench: Bench, engine: Engine, decision: Encoded, cached: int) -> None:
    assert engine.cached_tokens(decision) == cached
    forward = engine.forward(decision, never)
    assert np.isfinite(forward.logits).all()
    assert np.array_equal(forward.logits, bench.fresh(decision))
    assert forward.cached_tokens == cached
    assert forward.decoded_tokens + forward.cached_tokens == sum(map(len, decision.segments))


def check_reuse(bench: Bench) -> None:
    """Ask in an order in which nothing, the head, or the head and the state are in memory."""
    bench.forget()
    long_state, state = bench.state_of(1100, seed=1), bench.state_of(64, seed=2)
    long, long_again = bench.encode(long_state, 0), bench.encode(long_state, 1)
    medium, medium_again = bench.encode(state, 0), bench.encode(state, 1)
    short = bench.encode("Short.", 0)
    assert [len(item.segments) for item in (long, medium, short)] == [3, 3, 2]
    head = len(long.segments[0])
    head_and_long = head + len(long.segments[1])
    head_and_state = head + len(medium.segments[1])
    for decision, cached in [
        (long, 0),
        (long_again, head_and_long),  # the context holds it still
        (short, head),
        (medium, head),
        (medium_again, head_and_state),
        (medium_again, head_and_state),
        (long, head_and_long),  # from the cache
        (long_again, head_and_long),
        (medium, head_and_state),
        (short, head),
        (medium, head_and_state),
    ]:
        check_forward(bench, bench.engine, decision, cached)
    bench.cache.drop(long.segments[:2])
    check_forward(bench, bench.engine, long_again, head)  # computed again
    bench.engine.start_empty()
    check_forward(bench, bench.engine, medium, head_and_state)  # from an empty context
    bench.forget()
    check_forward(bench, bench.engine, medium_again, 0)
    # So that equal bits above mean something.
    assert not np.array_equal(bench.fresh(medium), bench.fresh(medium_again))


def test_each_memory_gets_its_mechanism(
    tiny_model: Model, hybrid_model: Model, gemma_model: Model
) -> None:
    names = [
        [
            reuse.name
            for reuse in reuse_candidates(
                is_recurrent=model.is_recurrent, window=model.window_tokens
            )
        ]
        for model in (tiny_model, hybrid_model, gemma_model)
    ]
    assert names == [
        ["tail removal and snapshots", "tail removal", "none"],
        ["snapshots", "none"],
        ["canonical snapshots", "tail removal", "none"],
    ]


def test_real_models_give_the_same_bits_whatever_is_kept(real: Bench) -> None:
    check_reuse(real)


def test_small_models_give_the_same_bits_whatever_is_kept(small: Bench) -> None:
    check_reuse(small)


def test_a_window_makes_the_layout_matter(gemma_model: Model) -> None:
    """Why snapshots are canonical there: a context that was never restored gives other bits."""
    with open_bench(gemma_model) as bench:
        state = bench.state_of(1100, seed=1)
        decision = bench.encode(state, 0)
        longer = replace(decision, segments=(*decision.segments[:2], decision.segments[2] * 2))
        direct = Engine(bench.context, TAIL_REMOVAL, bench.cache).forward(longer, never)
        bench.forget()
        assert not np.array_equal(direct.logits, bench.fresh(longer))
        check_forward(bench, bench.engine, longer, 0)
        check_forward(bench, bench.engine, longer, sum(map(len, longer.segments[:2])))


def test_many_decisions_in_a_random_order(small: Bench) -> None:
    """With room for a few states only, so that each of them leaves and comes back."""
    lengths = (64, 65, 128, 200, 511, 512, 513, 700, 1025)
    states = [small.state_of(length, seed=length) for length in lengths]
    states += ["", "Short.", "A state that is too short to be worth a decode."]
    decisions = [small.encode(state, question) for state in states for question in range(3)]
    random.Random(3).shuffle(decisions)
    cache = StateCache(max_bytes=1 << 30, max_entries=4)
    engine = Engine(small.context, small.reuse, cache)
    engine.start_empty()
    whole = 0
    for decision in [*decisions, *reversed(decisions)]:
        cached = engine.cached_tokens(decision)
        head, *state = map(len, decision.segments[:-1])
        assert cached in (0, head, head + sum(state))
        whole += bool(state) and cached == head + sum(state)
        check_forward(small, engine, decision, cached)
        assert len(cache) <= 4
    assert cache.evictions > 10
    assert (cache.hits, cache.hits + cache.misses) == (
        whole,
        2 * sum(len(item.segments) == 3 for item in decisions),
    )
    # A state was met again, and by far not always.
    assert 5 < whole < 40


@pytest.mark.parametrize("decodes", [0, 1, 2, 3])
def test_a_cancelled_decision_leaves_only_whole_marks(decodes: int, small: Bench) -> None:
    state = small.state_of(513, seed=1)
    first, second = small.encode(state, 0), small.encode(state, 1)
    head, long, _ = map(len, first.segments)
    # Head, two chunks of state, rest: four decodes, each of which can be the first left out.
    small.forget()
    cancel_after(decodes, small, first)
    check_forward(small, small.engine, second, [0, head, head, head + long][decodes])
    # With the state in memory only the rest is left.
    cancel_after(0, small, first)
    check_forward(small, small.engine, first, head + long)


def test_a_decision_is_decoded_in_512_tokens_at_most_at_a_time(small: Bench) -> None:
    small.forget()
    asked = count()

    def is_cancelled() -> bool:
        next(asked)
        return False

    decision = small.encode(small.state_of(513, seed=1), 0)
    assert [len(segment) > 512 for segment in decision.segments] == [False, True, False]
    small.engine.forward(decision, is_cancelled)
    # Head, two chunks of state, rest.
    assert next(asked) == 4


def test_states_of_the_same_length_are_told_apart(small: Bench) -> None:
    first = small.encode(small.state_of(64, seed=2), 0)
    head, state, rest = first.segments
    assert state[9] != state[10]
    second = replace(first, segments=(head, (*state[:9], state[10], state[9], *state[11:]), rest))
    small.forget()
    check_forward(small, small.engine, first, 0)
    check_forward(small, small.engine, second, len(head))
    check_forward(small, small.engine, first, len(head) + len(state))
    assert not np.array_equal(small.fresh(first), small.fresh(second))


def test_a_state_that_is_a_prefix_of_another(small: Bench) -> None:
    longer = small.encode(small.state_of(200, seed=2), 0)
    head, state, rest = longer.segments
    shorter = replace(longer, segments=(head, state[:100], rest))
    small.forget()
    check_forward(small, small.engine, shorter, 0)
    check_forward(small, small.engine, longer, len(head))
    check_forward(small, small.engine, shorter, len(head) + 100)
    check_forward(small, small.engine, longer, len(head) + len(state))


def test_the_same_tokens_cut_elsewhere_are_another_prompt(small: Bench) -> None:
    first = small.encode(small.state_of(200, seed=2), 0)
    head, state, rest = first.segments
    second = replace(first, segments=(head, state[:100], state[100:] + rest))
    small.forget()
    check_forward(small, small.engine, first, 0)
    check_forward(small, small.engine, second, len(head))
    check_forward(small, small.engine, first, len(head) + len(state))


def test_states_that_fill_the_context_exactly(small: Bench) -> None:
    base = small.encode(small.state_of(64, seed=2), 0)
    head, state, rest = base.segments
    room = CONTEXT_TOKENS - len(head) - len(rest)
    full = replace(base, segments=(head, (state * CONTEXT_TOKENS)[:room], rest))
    assert full.input_tokens == CONTEXT_TOKENS
    over = replace(base, segments=(head, (state * CONTEXT_TOKENS)[: room + 1], rest))
    small.forget()
    check_forward(small, small.engine, full, 0)
    check_forward(small, small.engine, base, len(head))
    check_forward(small, small.engine, full, len(head) + room)
    with pytest.raises(ScoringError, match="does not fit"):
        small.engine.forward(over, never)
    # The context is not trusted any more, nor what the prompt that failed went on from.
    assert full.segments[:1] not in small.cache
    check_forward(small, small.engine, base, len(head) + len(state))
    check_forward(small, small.engine, full, len(head) + room)


@pytest.mark.parametrize("max_bytes", [0, 1, 200_000])
def test_a_cache_too_small_costs_time_but_no_bit(max_bytes: int, small: Bench) -> None:
    cache = StateCache(max_bytes=max_bytes, max_entries=1000)
    engine = Engine(small.context, small.reuse, cache)
    engine.start_empty()
    states = [small.state_of(length, seed=length) for length in (1025, 64, 513)]
    for question in (0, 1):
        for state in states:
            decision = small.encode(state, question)
            check_forward(small, engine, decision, engine.cached_tokens(decision))
            assert cache.held_bytes <= max_bytes
    # Of 1,025 tokens no model here has a snapshot of so few bytes.
    assert small.encode(states[0], 0).segments[:2] not in cache
    assert bool(len(cache)) == (max_bytes == 200_000)


def test_both_layouts_and_both_orders_meet_in_one_cache(small: Bench) -> None:
    decision = Decision("d", small.state_of(64, seed=5), QUESTIONS[0], OPTIONS)
    encoder = small.encoder
    asked = [
        encoder.encode(item, layout=layout)
        for layout in ("evidence_first", "criterion_first")
        for item in (decision, decision.reversed())
    ]
    small.forget()
    heads = [len(item.segments[0]) for item in asked]
    prefixes = [sum(map(len, item.segments[:-1])) for item in asked]
    # The state comes first in one layout, and the options, in their order, in the other.
    expected = [0, prefixes[1], 0, heads[3]]
    for item, cached in zip(asked, expected, strict=True):
        check_forward(small, small.engine, item, cached)
    for item, cached in zip(asked, prefixes, strict=True):
        check_forward(small, small.engine, item, cached)
    other = replace(decision, state=small.state_of(64, seed=6))
    for order, cached in zip((other, other.reversed()), prefixes[2:], strict=True):
        check_forward(small, small.engine, encoder.encode(order, layout="criterion_first"), cached)


def test_what_is_at_stake(small: Bench) -> None:
    def encode(seed: int) -> Encoded:
        return small.encode(small.state_of(200, seed), 0)

    states = [encode(seed) for seed in range(4)]
    short = small.encode("Short.", 0)
    small.forget()
    engine = Engine(small.context, small.reuse, StateCache(max_bytes=1 << 30, max_entries=3))
    state_tokens = len(states[0].segments[1])
    assert engine.at_stake(states[0], states) == 0  # nothing is there yet
    engine.forward(states[0], never)
    assert engine.at_stake(short, states) == 0  # of a head there always is another
    assert engine.at_stake(states[0], []) == 0
    assert engine.at_stake(states[0], [states[0], short, states[1]]) == 0  # there is room
    assert engine.at_stake(states[0], [states[1], states[2]]) == state_tokens
    nothing_kept = Engine(small.context, small.reuse, StateCache(max_bytes=0, max_entries=0))
    nothing_kept.start_empty()
    nothing_kept.forward(states[0], never)
    in_context = small.reuse is not SNAPSHOTS
    assert nothing_kept.at_stake(states[0], [short]) == state_tokens * in_context


# --- start-up


def probe_of(bench: Bench) -> Encoded:
    return bench.encode("Short.", 0)


def test_a_proven_engine_keeps_the_head_and_nothing_else(small: Bench) -> None:
    cache = StateCache(max_bytes=1 << 20, max_entries=10)
    candidates = reuse_candidates(
        is_recurrent=small.model.is_recurrent, window=small.model.window_tokens
    )
    started = start_engine(small.context, cache, probe_of(small), candidates)
    assert started.engine.reuse is candidates[0]
    assert started.engine.cache is cache
    assert list(cache._entries) == [probe_of(small).segments[:1]]
    assert (cache.hits, cache.misses, cache.evictions) == (0, 0, 0)
    check_forward(small, started.engine, probe_of(small), len(probe_of(small).segments[0]))


def test_gemmas_mechanism_is_proven_at_start_up(gemma_model: Model) -> None:
    with open_bench(gemma_model) as bench:
        candidates = reuse_candidates(is_recurrent=False, window=512)
        probe = probe_of(bench)
        started = start_engine(bench.context, bench.cache, probe, candidates)
        assert started.engine.reuse is candidates[0]
        check_forward(bench, started.engine, probe, len(probe.segments[0]))


class Lying:
    """A context that does not do what it says, in one of its operations."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def decode(self, tokens: tuple[int, ...], *, position: int, want_logits: bool) -> None:
        self.context.decode(tokens, position=position, want_logits=want_logits)

    def logits(self) -> Logits:
        return self.context.logits()

    def decode_lanes(self, tails: Sequence[Segment], *, position: int) -> list[Logits]:
        return self.context.decode_lanes(tails, position=position)

    def truncate(self, position: int) -> bool:
        return self.context.truncate(position)

    def clear(self, *, wipe: bool) -> None:
        self.context.clear(wipe=wipe)

    def snapshot_size(self) -> int:
        return self.context.snapshot_size()

    def snapshot(self) -> Snapshot:
        return self.context.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        self.context.restore(snapshot)


class KeepsTheTail(Lying):
    """Says that it cut the sequence back, and leaves it as it is."""

    def truncate(self, position: int) -> bool:
        return True


class KeepsTheTailBehindTheHead(Lying):
    """Cuts off short tails, such as those behind a state, and no others."""

    def truncate(self, position: int) -> bool:
        self.context.truncate(position + 1)
        return True


class ForgetsTheHead(Lying):
    """Loses the first token when it cuts."""

    def truncate(self, position: int) -> bool:
        done = self.context.truncate(position)
        api, memory = self.context._api, self.context._memory
        return done and bool(api.llama_memory_seq_rm(memory, 0, 0, 1))


class RestoresNothing(Lying):
    """Brings back an empty context instead of the one that was saved."""

    def restore(self, snapshot: Snapshot) -> None:
        self.context.clear(wipe=False)


class RestoresTheFirst(Lying):
    """Brings back the snapshot that it was first given of each size."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.first: dict[int, Snapshot] = {}

    def snapshot(self) -> Snapshot:
        snapshot = self.context.snapshot()
        return self.first.setdefault(len(snapshot), snapshot)


class RestoresAnotherLayer(Lying):
    """Saves zeros at the end of a snapshot: the values of the last layer's last tokens."""

    def snapshot(self) -> Snapshot:
        snapshot = self.context.snapshot()
        snapshot[-64:] = 0
        return snapshot


class Refuses(Lying):
    """Cannot cut, and says so."""

    def truncate(self, position: int) -> bool:
        return False


class CannotSave(Lying):
    """Fails to take a snapshot, and says so."""

    def snapshot(self) -> Snapshot:
        raise ScoringError("llama.cpp could not save its state")


CUTTERS = [KeepsTheTail, KeepsTheTailBehindTheHead, ForgetsTheHead]
RESTORERS = [RestoresNothing, RestoresTheFirst, RestoresAnotherLayer, CannotSave]


@pytest.mark.parametrize("broken", [*CUTTERS, *RESTORERS], ids=lambda kind: kind.__name__)
def test_a_memory_that_lies_is_found_out_at_start_up(broken: type[Lying], small: Bench) -> None:
    probe = probe_of(small)
    candidates = reuse_candidates(
        is_recurrent=small.model.is_recurrent, window=small.model.window_tokens
    )
    cache = StateCache(max_bytes=1 << 30, max_entries=1000)
    small.forget()
    engine = start_engine(broken(small.context), cache, probe, candidates).engine
    if broken in CUTTERS:
        # A hybrid is never cut.
        assert engine.reuse is (SNAPSHOTS if small.model.is_recurrent else NO_REUSE)
    else:
        assert engine.reuse is (NO_REUSE if small.model.is_recurrent else TAIL_REMOVAL)
    state, other = small.state_of(64, seed=2), small.state_of(65, seed=3)
    for question in (0, 1, 0):
        for asked in (state, other):
            decision = small.encode(asked, question)
            check_forward(small, engine, decision, engine.cached_tokens(decision))


@pytest.mark.parametrize("broken", RESTORERS, ids=lambda kind: kind.__name__)
def test_a_window_whose_restores_are_wrong_is_found_out(
    broken: type[Lying], gemma_model: Model
) -> None:
    """There a cold prompt is restored too, and so as wrong as a cached one."""
    with open_bench(gemma_model) as bench:
        candidates = reuse_candidates(is_recurrent=False, window=512)
        started = start_engine(broken(bench.context), bench.cache, probe_of(bench), candidates)
        assert started.engine.reuse is TAIL_REMOVAL


def test_a_memory_that_refuses_costs_time_but_no_bit(tiny_model: Model) -> None:
    with open_bench(tiny_model) as small:
        state = small.state_of(64, seed=2)
        engine = Engine(
            Refuses(small.context), TAIL_REMOVAL, StateCache(max_bytes=0, max_entries=0)
        )
        engine.start_empty()
        for question in (0, 1):
            decision = small.encode(state, question)
            forward = engine.forward(decision, never)
            assert np.array_equal(forward.logits, small.fresh(decision))
            assert forward.cached_tokens == 0
        both = Engine(Refuses(small.context), TAIL_REMOVAL_AND_SNAPSHOTS, small.cache)
        both.start_empty()
        for question, cached in ((0, 0), (1, 1)):
            decision = small.encode(state, question)
            forward = both.forward(decision, never)
            assert np.array_equal(forward.logits, small.fresh(decision))
            assert forward.cached_tokens == cached * sum(map(len, decision.segments[:2]))


class TurnsNan(Lying):
    """Gives logits that are not finite, when told to."""

    is_broken = False

    def logits(self) -> Logits:
        logits = self.context.logits()
        if self.is_broken:
            logits[7] = np.nan
        return logits


def test_a_prompt_whose_logits_are_not_finite_leaves_nothing(small: Bench) -> None:
    memory = TurnsNan(small.context)
    engine = Engine(memory, small.reuse, small.cache)
    small.forget()
    state = small.state_of(64, seed=2)
    check_forward(small, engine, small.encode(state, 0), 0)
    memory.is_broken = True
    with pytest.raises(ScoringError, match="not finite"):
        engine.forward(small.encode(state, 1), never)
    memory.is_broken = False
    assert len(small.cache) == 0
    check_forward(small, engine, small.encode(state, 1), 0)


class LacksMemory(Lying):
    """Has no memory for its next snapshots: for `failures` of them."""

    failures = 0

    def snapshot(self) -> Snapshot:
        if self.failures:
            self.failures -= 1
            raise MemoryError
        return self.context.snapshot()


def test_a_snapshot_without_memory_costs_half_the_cache_but_no_bit(small: Bench) -> None:
    memory = LacksMemory(small.context)
    cache = StateCache(max_bytes=1 << 30, max_entries=1000)
    engine = Engine(memory, small.reuse, cache)
    small.forget()
    first, second = small.state_of(64, seed=4), small.state_of(64, seed=5)
    check_forward(small, engine, small.encode(first, 0), 0)
    held = cache.held_bytes
    memory.failures = 1
    head = len(small.encode(second, 0).segments[0])
    check_forward(small, engine, small.encode(second, 0), head)

    assert cache.max_bytes == held // 2
    assert cache.held_bytes <= held // 2


def test_a_snapshot_that_the_answer_depends_on_is_tried_once_more(small: Bench) -> None:
    memory = LacksMemory(small.context)
    canonical = replace(SNAPSHOTS, canonical=True)
    engine = Engine(memory, canonical, StateCache(max_bytes=1 << 30, max_entries=1000))
    decision = small.encode(small.state_of(64, seed=6), 0)
    engine.start_empty()
    memory.failures = 1
    check_forward(small, engine, decision, 0)
    engine.start_empty()
    memory.failures = 2
    with pytest.raises(MemoryError):
        engine.forward(small.encode(small.state_of(64, seed=7), 0), never)
    check_forward(small, engine, decision, 0)
