"""The state cache: its bounds and its order, and that answers over HTTP never show it but in time.

The same decision is asked cold, again, after its state has left the cache, beside others in one
request, under 16 callers, and after a restart: on plain attention, on a sliding window with states
beyond it, and on a hybrid. Each time every bit of its answer is the same.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.engine import Engine, reuse_candidates
from adapter.llama import Library, Model
from adapter.state_cache import KEY_BYTES_PER_TOKEN, Prefix, StateCache
from tests.adapter_process import DEMO_MODEL, GEMMA_MODEL, AdapterProcess
from tests.gguf_models import BYTES_TEMPLATE, write_hybrid_model, write_tiny_model
from tests.test_reuse import open_bench

WORDS = (
    "invoice", "password", "Größe", "refund", "late", "parcel", "42", "plan", "Zürich", "the", "a",
    "customer", "twice", "never", "wrote", "Monday", "email", "reset", "asks", "again", "and",
)  # fmt: skip


# --- the cache alone


def prefix(*segments: int) -> Prefix:
    """Segments of one token each."""
    return tuple((segment,) for segment in segments)


def snapshot(size: int) -> Any:
    return np.zeros(size, np.uint8)


def put(cache: StateCache, key: Prefix, size: int) -> bool:
    if not cache.reserve(key, size):
        return False
    cache.add(key, snapshot(size))
    return True


def test_what_was_used_longest_ago_leaves_first() -> None:
    cache = StateCache(max_bytes=1 << 20, max_entries=2)
    assert put(cache, prefix(1), 10)
    assert put(cache, prefix(2), 10)
    cache.touch(prefix(1))
    assert put(cache, prefix(3), 10)
    assert [prefix(key) in cache for key in (1, 2, 3)] == [True, False, True]
    assert cache.evictions == 1


def test_keys_count_with_their_snapshots() -> None:
    cache = StateCache(max_bytes=100 + 2 * KEY_BYTES_PER_TOKEN, max_entries=9)
    assert put(cache, prefix(1, 2), 100)
    assert cache.held_bytes == 100 + 2 * KEY_BYTES_PER_TOKEN
    assert not cache.reserve(prefix(3, 4), 101)
    assert prefix(1, 2) in cache


def test_a_snapshot_that_can_never_fit_pushes_nothing_out() -> None:
    cache = StateCache(max_bytes=1000, max_entries=9)
    assert put(cache, prefix(1), 10)
    assert not cache.reserve(prefix(2), 1000)
    assert prefix(1) in cache
    assert cache.evictions == 0


@pytest.mark.parametrize(("max_bytes", "max_entries"), [(0, 9), (1 << 20, 0)])
def test_an_empty_budget_holds_nothing(max_bytes: int, max_entries: int) -> None:
    cache = StateCache(max_bytes=max_bytes, max_entries=max_entries)
    assert not cache.reserve(prefix(1), 0 if max_entries == 0 else 1)
    assert (len(cache), cache.held_bytes) == (0, 0)


def test_a_head_outlives_the_states_behind_it() -> None:
    cache = StateCache(max_bytes=1 << 20, max_entries=3)
    assert put(cache, prefix(1), 10)
    for state in range(2, 9):
        assert put(cache, prefix(1, state), 10)
    # Found again and again without it, it is as fresh as they are.
    cache.touch(prefix(1, 8))
    assert put(cache, prefix(5), 10)
    assert [prefix(1) in cache, prefix(1, 7) in cache, prefix(1, 8) in cache] == [True, False, True]


def test_room_for_a_state_is_never_made_of_its_own_head() -> None:
    cache = StateCache(max_bytes=119 + 3 * KEY_BYTES_PER_TOKEN, max_entries=9)
    assert put(cache, prefix(1), 60)
    assert not put(cache, prefix(1, 2), 60)
    assert prefix(1) in cache


def test_what_outlasts_what() -> None:
    cache = StateCache(max_bytes=3 * (100 + KEY_BYTES_PER_TOKEN), max_entries=9)
    for key in (1, 2):
        assert put(cache, prefix(key), 100)
    assert cache.outlasts(prefix(1), [prefix(3)])
    assert not cache.outlasts(prefix(1), [prefix(3), prefix(4)])
    assert cache.outlasts(prefix(2), [prefix(3), prefix(4)])
    assert not cache.outlasts(prefix(5), [])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "touch", "drop"]),
            st.lists(st.integers(1, 3), min_size=1, max_size=3),
            st.integers(0, 60),
        ),
        max_size=40,
    ),
    st.integers(0, 400),
    st.integers(0, 4),
)
def test_the_bounds_hold_whatever_happens(
    steps: list[tuple[str, list[int], int]], max_bytes: int, max_entries: int
) -> None:
    cache = StateCache(max_bytes=max_bytes, max_entries=max_entries)
    for what, numbers, size in steps:
        key = prefix(*numbers)
        if what == "put" and key not in cache:
            before = {entry for entry in cache._entries if entry == key[: len(entry)]}
            if put(cache, key, size):
                assert before < set(cache._entries)
        elif what == "touch":
            cache.touch(key)
        elif what == "drop":
            cache.drop(key)
        sizes = [
            entry.nbytes + KEY_BYTES_PER_TOKEN * len(key) for key, entry in cache._entries.items()
        ]
        assert cache.held_bytes == sum(sizes) <= max_bytes
        assert len(cache) == len(sizes) <= max_entries


def test_memory_stays_flat_over_many_states(tmp_path: Path, library: Library) -> None:
    """2,000 prompts over 200 states, in a cache with room for about 20 of them."""
    write_tiny_model(tmp_path / "tiny.gguf", chat_template=None)
    model = Model(library, tmp_path / "tiny.gguf", gpu_layers=0)
    with open_bench(model) as bench:
        encoded = [
            bench.encode(generated_state(random.Random(seed), 20), seed % 3) for seed in range(200)
        ]
        cache = StateCache(max_bytes=2 << 20, max_entries=1000)
        reuse, *_ = reuse_candidates(is_recurrent=False, window=0)
        engine = Engine(bench.context, reuse, cache)
        engine.start_empty()
        order = random.Random(0)
        resident = []
        for _ in range(4):
            for _ in range(500):
                engine.forward(order.choice(encoded), lambda: False)
                assert cache.held_bytes <= 2 << 20
            resident.append(resident_bytes())
        assert cache.evictions > 1000
        assert 10 < len(cache) < 100
        assert resident[-1] - resident[0] < 2 << 20
    model.close()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def generated_state(source: random.Random, words: int) -> str:
    return " ".join(source.choices(WORDS, k=words))


# --- over HTTP


class Asked:
    """Decisions about a few generated states, in several ways to ask them."""

    def __init__(self, lengths: tuple[int, ...], questions: int) -> None:
        source = random.Random(sum(lengths))
        states: list[Any] = [generated_state(source, length) for length in lengths]
        # JSON that differs in nothing but the order of its keys.
        note = generated_state(source, 80)
        states += [{"note": note, "open": True}, {"open": True, "note": note}]
        self.decisions = [
            {
                "id": f"{number}-{question}",
                "state": state,
                "question": f"{generated_state(source, 4)}?",
                "options": [
                    {"id": str(option), "description": generated_state(source, 3)}
                    for option in range(2 + question)
                ],
            }
            for number, state in enumerate(states)
            for question in range(questions)
        ]


class Kind:
    """An architecture: how to write or find its model, and what to ask it."""

    def __init__(self, path: Path, asked: Asked) -> None:
        self.path = path
        self.asked = asked

    def start(self, *, cache_mb: int = 512, cache_entries: int = 4096) -> AdapterProcess:
        return AdapterProcess(
            BALLOT_GGUF_PATH=str(self.path),
            BALLOT_THREADS="1",
            BALLOT_CONTEXT_TOKENS="2048",
            BALLOT_STATE_CACHE_MB=str(cache_mb),
            BALLOT_STATE_CACHE_ENTRIES=str(cache_entries),
        )


@pytest.fixture(scope="module", params=["attention", "window", "hybrid", "tiny"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    """Real models with few decisions, for they take their time; random ones with many."""
    folder = tmp_path_factory.mktemp("kinds")
    if request.param == "attention":
        return Kind(DEMO_MODEL, Asked((30, 120), questions=2))
    if request.param == "window":
        return Kind(GEMMA_MODEL, Asked((30, 600), questions=2))
    if request.param == "hybrid":
        write_hybrid_model(folder / "hybrid.gguf")
        return Kind(folder / "hybrid.gguf", Asked((20, 60, 90, 200, 400, 600), questions=4))
    write_tiny_model(folder / "tiny.gguf", chat_template=BYTES_TEMPLATE)
    return Kind(folder / "tiny.gguf", Asked((3, 8, 20, 60, 90, 150), questions=4))


def post(client: httpx.Client, request: dict[str, Any]) -> list[dict[str, Any]]:
    response = client.post("/invocations", json=request)
    assert response.status_code == 200, response.text
    answer = response.json()
    results: list[dict[str, Any]] = answer.get("results") or [answer["result"]]
    for result in results:
        assert 0 <= result["cached_tokens"] < result["input_tokens"]
    return results


def bits(result: dict[str, Any]) -> tuple[Any, ...]:
    """What must not move: JSON floats carry every bit of a double."""
    names = ("option_logits", "probabilities", "allowed_token_mass", "prompt_sha256")
    return tuple(json.dumps(result[name]) for name in names)


def metrics(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    pairs = [line.split() for line in lines if line.startswith("ballot_") and "{" not in line]
    return {name: float(value) for name, value in pairs}


@pytest.fixture(scope="module")
def cold(kind: Kind) -> list[dict[str, Any]]:
    """Each decision's result where nothing is kept beside the context."""
    with kind.start(cache_mb=0).wait_ready() as adapter, adapter.client() as client:
        # Every other decision asks about another state.
        decisions = kind.asked.decisions
        half = len(decisions) // 2
        order = [
            index for pair in zip(range(half), range(half, 2 * half), strict=True) for index in pair
        ]
        results = {index: post(client, {"decision": decisions[index]})[0] for index in order}
        numbers = metrics(client)
        assert numbers["ballot_state_cache_entries"] == numbers["ballot_state_cache_bytes"] == 0
    return [results[index] for index in range(len(decisions))]


def test_answers_are_the_same_to_the_bit_however_they_are_come_by(
    kind: Kind, cold: list[dict[str, Any]]
) -> None:
    decisions = kind.asked.decisions
    expected = [bits(result) for result in cold]
    assert len({item[0] for item in expected}) == len(expected)
    with kind.start().wait_ready() as adapter, adapter.client() as client:
        first = [post(client, {"decision": decision})[0] for decision in decisions]
        decoded = metrics(client)["ballot_tokens_decoded_total"]
        again = [post(client, {"decision": decision})[0] for decision in decisions]
        numbers = metrics(client)
        shared = post(client, {"decisions": decisions})
        with ThreadPoolExecutor(16) as pool:
            together = list(
                pool.map(lambda item: post(client, {"decision": item})[0], decisions[::-1])
            )[::-1]
    tight = kind.start(cache_entries=2).wait_ready()
    with tight as adapter, adapter.client() as client:
        # States leave the cache in the middle of the request, and are decoded again.
        evicted = post(client, {"decisions": decisions}), post(client, {"decisions": decisions})
        assert metrics(client)["ballot_state_cache_evictions_total"] > 0

    for results in (first, again, shared, together, *evicted):
        assert [bits(result) for result in results] == expected
    # Asked again, every decision finds its state, and only what is behind it is decoded.
    suffixes = 0
    for before, after in zip(first, again, strict=True):
        assert after["input_tokens"] == before["input_tokens"]
        assert after["cached_tokens"] >= before["cached_tokens"]
        suffixes += after["input_tokens"] - after["cached_tokens"]
    assert numbers["ballot_tokens_decoded_total"] - decoded == suffixes
    assert 0 < numbers["ballot_state_cache_bytes"] <= numbers["ballot_state_cache_limit_bytes"]
    assert numbers["ballot_state_cache_limit_bytes"] == 512 << 20
    assert numbers["ballot_state_cache_evictions_total"] == 0


def test_a_repeated_state_decodes_only_what_is_behind_it(kind: Kind) -> None:
    long = kind.asked.decisions[-2 * 2 - 1]
    states = [kind.asked.decisions[0]["state"], long["state"]]
    with kind.start().wait_ready() as adapter, adapter.client() as client:
        head = post(client, {"decision": {**long, "state": "Short."}})[0]["cached_tokens"]
        for state in (states[1], states[0], states[1]):
            result = post(client, {"decision": {**long, "state": state}})[0]
        before = metrics(client)
        other = post(client, {"decision": {**long, "question": "Is that so?"}})[0]
        after = metrics(client)
    tail = other["input_tokens"] - other["cached_tokens"]
    assert other["cached_tokens"] == result["cached_tokens"] > head + 64
    assert after["ballot_tokens_decoded_total"] - before["ballot_tokens_decoded_total"] == tail
    assert (
        after["ballot_tokens_reused_total"] - before["ballot_tokens_reused_total"]
        == (other["cached_tokens"])
    )
    assert after["ballot_state_cache_hits_total"] - before["ballot_state_cache_hits_total"] == 1
    assert after["ballot_state_cache_misses_total"] == before["ballot_state_cache_misses_total"]


def test_states_that_differ_in_key_order_are_two_prompts(kind: Kind) -> None:
    second = kind.asked.decisions[-1]
    first = {**second, "state": dict(reversed(second["state"].items()))}
    assert first["state"] == second["state"]
    with kind.start().wait_ready() as adapter, adapter.client() as client:
        results = [post(client, {"decision": item})[0] for item in (first, second, first, second)]
    hashes = [result["prompt_sha256"] for result in results]
    assert hashes[0] == hashes[2] != hashes[1] == hashes[3]
    assert results[1]["cached_tokens"] < results[3]["cached_tokens"]
    assert [bits(result) for result in results[:2]] == [bits(result) for result in results[2:]]


def test_a_state_larger_than_the_budget_is_scored_and_not_kept(
    kind: Kind, cold: list[dict[str, Any]]
) -> None:
    """A mebibyte holds the head of each model, and of SmolLM2 and Gemma no state at all."""
    decisions = kind.asked.decisions
    with kind.start(cache_mb=1).wait_ready() as adapter, adapter.client() as client:
        for _ in range(2):
            results = post(client, {"decisions": decisions})
            assert [bits(result) for result in results] == [bits(result) for result in cold]
        assert metrics(client)["ballot_state_cache_bytes"] <= 1 << 20
