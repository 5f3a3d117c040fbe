"""Reuse: the same decision gives the same bits, whatever the context holds of earlier ones.

What is expected comes from llama.cpp itself: a context made for one decision, which decodes the
decision's segments from the start and is thrown away.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from adapter.decision import Decision, Option
from adapter.engine import (
    BATCH_TOKENS,
    Cancelled,
    Engine,
    Reuse,
    Snapshots,
    TailRemoval,
    start_engine,
)
from adapter.llama import Context, Library, Model
from adapter.prompt import plain_template, render_template
from adapter.tokens import Encoded, Encoder
from tests.adapter_process import GEMMA_MODEL
from tests.gguf_models import write_hybrid_model, write_tiny_model

CONTEXT_TOKENS = 2048
# Several threads wait for each other in a busy loop, for seconds where the machine has other work.
THREADS = 1
OPTIONS = (Option("a", "Account access."), Option("b", "Billing."), Option("c", "Sales."))
QUESTIONS = ("Which team should answer?", "Which team has the data?", "Who has called before?")
TEXT = (
    "the customer wrote on Monday that an invoice of 12 euros arrived twice; since then our shop "
    "answered slowly, prices were raised and the plan changed to Größe XL in Zürich"
)
WORDS = TEXT.split()

Logits = npt.NDArray[np.float32]


@dataclass
class Bench:
    """A loaded model with an engine on it, and what each decision's logits should be."""

    model: Model
    encoder: Encoder
    context: Context
    reuse: Reuse
    engine: Engine
    expected: dict[tuple[tuple[int, ...], ...], Logits] = field(default_factory=dict)

    def encode(self, state: str, question: int) -> Encoded:
        return self.encoder.encode(Decision("d", state, QUESTIONS[question], OPTIONS))

    def fresh(self, encoded: Encoded) -> Logits:
        """Return the logits that a context made for `encoded` alone gives, once computed."""
        if encoded.segments not in self.expected:
            api = self.model.library.api
            self.expected[encoded.segments] = decode_alone(api, self.model.handle, encoded)
        return self.expected[encoded.segments]

    def state_of(self, least_tokens: int, seed: int) -> str:
        """Return a state that is a segment of at least so many tokens, and hardly more."""
        words: list[str] = []
        choices = random.Random(seed)
        while True:
            words += choices.choices(WORDS, k=5)
            segments = self.encode(" ".join(words), 0).segments
            if len(segments) == 3 and len(segments[1]) >= least_tokens:
                return " ".join(words)


def decode_alone(api: Any, model: Any, encoded: Encoded) -> Logits:
    """Decode `encoded` in a context of its own, through llama.cpp's C functions alone."""
    params = api.llama_context_default_params()
    params.n_ctx = CONTEXT_TOKENS
    params.n_batch = params.n_ubatch = 512
    params.n_outputs_max = 1
    params.n_threads = params.n_threads_batch = THREADS
    context = api.llama_init_from_model(model, params)
    assert context
    position = 0
    for segment in encoded.segments:
        for start in range(0, len(segment), 512):
            chunk = segment[start : start + 512]
            tokens = (ctypes.c_int32 * len(chunk))(*chunk)
            # Without positions and flags: it goes on behind what there is, the last one is read.
            assert api.llama_decode(context, api.llama_batch_get_one(tokens, len(chunk))) == 0
            position += len(chunk)
    assert position == encoded.input_tokens
    size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    logits = np.array(api.llama_get_logits_ith(context, -1)[:size], np.float32)
    api.llama_free(context)
    return logits


@pytest.fixture(scope="session")
def tiny_model(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A random attention model over bytes."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(path, chat_template=None)
    with closing(Model(library, path, gpu_layers=0)) as model:
        yield model


@pytest.fixture(scope="session")
def hybrid_model(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A random Qwen3.5 hybrid: three layers with a running state to one of attention."""
    path = tmp_path_factory.mktemp("hybrid") / "qwen35-random.gguf"
    write_hybrid_model(path)
    with closing(Model(library, path, gpu_layers=0)) as model:
        assert model.metadata("general.architecture") == "qwen35"
        yield model


@pytest.fixture(scope="session")
def gemma_model(library: Library) -> Iterator[Model]:
    """Gemma 3 270M: its sliding-window layers see the last 512 tokens."""
    with closing(Model(library, GEMMA_MODEL, gpu_layers=0)) as model:
        assert model.metadata("gemma3.attention.sliding_window") == "512"
        yield model


@contextmanager
def open_bench(model: Model) -> Iterator[Bench]:
    template = plain_template()
    if model.chat_template is not None:
        template = render_template(model.chat_template, bos_token="<bos>", eos_token="")
    encoder = Encoder(model.vocabulary, template, context_tokens=CONTEXT_TOKENS)
    with closing(
        Context(model, tokens=CONTEXT_TOKENS, threads=THREADS, batch_tokens=BATCH_TOKENS)
    ) as context:
        reuse: Reuse = Snapshots(context) if model.is_recurrent else TailRemoval(context)
        yield Bench(model, encoder, context, reuse, Engine(context, reuse))


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


def check_reuse(bench: Bench) -> None:
    """Ask in an order in which nothing, the head, or the head and the state can be kept."""
    bench.engine.reset()
    long_state, state = bench.state_of(513, seed=1), bench.state_of(64, seed=2)
    long, long_again = bench.encode(long_state, 0), bench.encode(long_state, 1)
    medium, medium_again = bench.encode(state, 0), bench.encode(state, 1)
    short = bench.encode("Short.", 0)
    assert [len(item.segments) for item in (long, medium, short)] == [3, 3, 2]
    head = len(long.segments[0])
    head_and_long = head + len(long.segments[1])
    head_and_state = head + len(medium.segments[1])
    for decision, cached in [
        (long, 0),
        (long_again, head_and_long),
        (short, head),
        (medium, head),
        (medium_again, head_and_state),
        (medium_again, head_and_state),
        (short, head),
        (medium, head),
    ]:
        check_forward(bench, bench.engine, decision, cached)
    cancel_after(1, bench, bench.encode(bench.state_of(64, seed=3), 0))
    check_forward(bench, bench.engine, short, 0)
    check_forward(bench, bench.engine, medium_again, head)
    # So that equal bits above mean something.
    assert not np.array_equal(bench.fresh(medium), bench.fresh(medium_again))


def check_forward(bench: Bench, engine: Engine, decision: Encoded, cached: int) -> None:
    forward = engine.forward(decision, never)
    assert np.isfinite(forward.logits).all()
    assert np.array_equal(forward.logits, bench.fresh(decision))
    assert forward.cached_tokens == cached
    assert forward.decoded_tokens + forward.cached_tokens == sum(map(len, decision.segments))


def test_real_models_give_the_same_bits_whatever_is_kept(real: Bench) -> None:
    assert real.reuse.name == "tail removal"
    check_reuse(real)


def test_small_models_give_the_same_bits_whatever_is_kept(small: Bench) -> None:
    is_hybrid = small.model.metadata("general.architecture") == "qwen35"
    assert small.reuse.name == ("snapshots" if is_hybrid else "tail removal")
    check_reuse(small)


def test_many_decisions_in_a_random_order(small: Bench) -> None:
    small.engine.reset()
    lengths = (64, 65, 128, 200, 511, 512, 513, 700, 1025)
    states = [small.state_of(length, seed=length) for length in lengths]
    states += ["", "Short.", "A state that is too short to be worth a decode."]
    decisions = [small.encode(state, question) for state in states for question in range(3)]
    random.Random(3).shuffle(decisions)
    held: Encoded | None = None
    kept = []
    for decision in [*decisions, *reversed(decisions)]:
        cached = tokens_in_common(held, decision)
        check_forward(small, small.engine, decision, cached)
        kept.append(cached > len(decision.segments[0]))
        held = decision
    # A state was met again by chance, and by far not always.
    assert 3 < sum(kept) < 20


def tokens_in_common(held: Encoded | None, asked: Encoded) -> int:
    """Return the tokens of the segments, but for the last, with which both prompts start."""
    tokens = 0
    for ours, theirs in zip(held.segments if held else (), asked.segments[:-1], strict=False):
        if ours != theirs:
            break
        tokens += len(ours)
    return tokens


@pytest.mark.parametrize("decodes", [0, 1, 2, 3])
def test_a_cancelled_decision_leaves_no_trace(decodes: int, small: Bench) -> None:
    state = small.state_of(513, seed=1)
    first, second = small.encode(state, 0), small.encode(state, 1)
    # Head, two chunks of state, rest: four decodes, each of which can be the first left out.
    small.engine.reset()
    cancel_after(decodes, small, first)
    check_forward(small, small.engine, second, 0)
    # With the state in memory only the rest is left.
    cancel_after(0, small, first)
    check_forward(small, small.engine, first, 0)


def test_a_decision_is_decoded_in_512_tokens_at_most_at_a_time(small: Bench) -> None:
    small.engine.reset()
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
    small.engine.reset()
    check_forward(small, small.engine, first, 0)
    check_forward(small, small.engine, second, len(head))
    check_forward(small, small.engine, first, len(head))
    assert not np.array_equal(small.fresh(first), small.fresh(second))


def test_snapshots_of_what_came_later_are_dropped(small: Bench) -> None:
    """They would be of other prompts, and pile up."""
    snapshots = Snapshots(small.context)
    small.engine.reset()
    small.context.decode((10,), position=0, want_logits=False)
    for position in (1, 30, 20):
        snapshots.mark(position)
    assert not snapshots.rewind(30)
    assert snapshots.rewind(20)
    assert snapshots.rewind(1)
    assert not snapshots.rewind(20)


def test_reuse_that_keeps_its_word_stays(small: Bench) -> None:
    small.engine.reset()
    probe = small.encode(small.state_of(64, seed=2), 0)
    assert start_engine(small.context, small.reuse, [probe]).reuse is small.reuse


class KeepsTheTail:
    """Says that it cut the sequence back, and leaves it as it is."""

    name = "broken"

    def mark(self, position: int) -> None:
        pass

    def rewind(self, position: int) -> bool:
        return True


class Forgets:
    """Brings back an empty context instead of the marked one."""

    name = "broken"

    def __init__(self, context: Context) -> None:
        self._context = context

    def mark(self, position: int) -> None:
        pass

    def rewind(self, position: int) -> bool:
        self._context.clear()
        return True


class RestoresAnother:
    """Brings back another prompt of the same length."""

    name = "broken"

    def __init__(self, context: Context, other: tuple[tuple[int, ...], ...]) -> None:
        self._context = context
        position = 0
        context.clear()
        for segment in other[:2]:
            context.decode(segment, position=position, want_logits=False)
            position += len(segment)
        self._saved = context.snapshot()
        context.clear()

    def mark(self, position: int) -> None:
        pass

    def rewind(self, position: int) -> bool:
        self._context.restore(self._saved)
        return True


class Refuses:
    """Cannot rewind, and says so."""

    name = "refuses"

    def mark(self, position: int) -> None:
        pass

    def rewind(self, position: int) -> bool:
        return False


@pytest.mark.parametrize("broken", ["keeps the tail", "forgets", "restores another"])
def test_reuse_that_lies_is_found_out_at_start_up(broken: str, small: Bench) -> None:
    state = small.state_of(64, seed=2)
    probe = small.encode(state, 0)
    # The same state with two tokens swapped: it is cut at the same position.
    head, middle, rest = probe.segments
    assert middle[-2] != middle[-3]
    swapped = (head, (*middle[:-3], middle[-2], middle[-3], middle[-1]), rest)
    makers: dict[str, Callable[[], Reuse]] = {
        "keeps the tail": KeepsTheTail,
        "forgets": lambda: Forgets(small.context),
        "restores another": lambda: RestoresAnother(small.context, swapped),
    }
    small.engine.reset()
    engine = start_engine(small.context, makers[broken](), [probe])
    assert engine.reuse.name == "none"
    for question in (0, 1, 0):
        check_forward(small, engine, small.encode(state, question), 0)


def test_reuse_that_refuses_costs_time_but_no_bit(small: Bench) -> None:
    state = small.state_of(64, seed=2)
    engine = Engine(small.context, Refuses())
    engine.reset()
    for question in (0, 1):
        check_forward(small, engine, small.encode(state, question), 0)
