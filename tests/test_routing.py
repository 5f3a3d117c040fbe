"""Which instance a request goes to: what our callers send first, and the simulation of it.

The simulation is held against cases worked out by hand and against queueing theory.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballot import InvalidRequest, Noul, wire
from ballot.decision import Decision, Option
from ballot.decision import Request as Body
from bench import routing
from bench.routing_replay import (
    Replayed,
    at_random,
    least_outstanding,
    prefix_aware,
    replay,
)
from bench.routing_trace import (
    CATALOGUE,
    COLD_LOAD,
    REQUESTS_AN_INSTANCE,
    WORKLOADS,
    Cost,
    Request,
    make_trace,
    prefix_of,
    read_trace,
    write_lines,
)
from bench.rows import BenchError
from tests.adapter_process import ROOT, AdapterProcess
from tests.cli_process import Scripted, ScriptedServer, ballot, result
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model
from tests.scripted_endpoint import GOOD, RESULT, WAYS, Step, client_of, scripted

# -- What is sent first ----------------------------------------------------------------------------

PAGE = (ROOT / "docs/routing.md").read_text()
# More than the 1,024 bytes that SageMaker looks at at least.
LONG = "A customer writes that the parcel has not arrived. " * 30


SEVERAL = Step(200, {"results": [{**RESULT, "id": id} for id in ("e", "f")], "timing": {}})
REFUSED = Step(422, {"detail": [{"loc": ["body"], "msg": "no", "type": "wrong_type"}]})


def decision(id: str, state: Any, question: str) -> Decision:
    return Decision(id, state, question, (Option("a", "x"), Option("b", "y")))


@pytest.mark.parametrize("way", WAYS)
def test_one_state_has_one_prefix_whatever_is_asked_about_it(way: str) -> None:
    with (
        scripted(GOOD, SEVERAL, REFUSED) as endpoint,
        client_of(endpoint.url, way) as client,
    ):
        client.decide(decision("d", LONG, "q?"))
        client.decide_many([decision("e", LONG, "Is it so?"), decision("f", "another", "q?")])
        with pytest.raises(InvalidRequest):
            client.systemone(LONG, {"q": Noul("Is it so?")})

    one, several, system_one = (request.body for request in endpoint.received)
    text = json.dumps(LONG).encode()
    assert one.startswith(b'{"decision":{"state":' + text)
    assert several.startswith(b'{"decisions":[{"state":' + text)
    assert system_one.startswith(b'{"state":' + text)


@given(
    ids=st.lists(st.text(min_size=1, max_size=20), min_size=2, max_size=2, unique=True),
    questions=st.lists(st.text(min_size=1), min_size=2, max_size=2),
)
def test_ids_and_questions_do_not_move_a_prefix_and_states_do(
    ids: list[str], questions: list[str]
) -> None:
    bodies = [
        wire.encode(Body((decision(id, LONG, question),), single=True).as_json())
        for id, question in zip(ids, questions, strict=True)
    ]
    other = wire.encode(Body((decision(ids[0], "B" + LONG, "q?"),), single=True).as_json())

    assert prefix_of(bodies[0]) == prefix_of(bodies[1])
    assert prefix_of(bodies[0]) != prefix_of(other)


def test_the_command_sends_the_state_first_wherever_the_file_has_it(tmp_path: Path) -> None:
    options = [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}]
    asked = {"options": options, "id": "d", "question": "q?", "state": LONG}
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"decision": asked}))
    answer = Scripted.of({"result": result("d", {"a": 0.5, "b": 0.5})})
    with ScriptedServer(answer) as server:
        done = ballot("decide", str(request), "--url", server.url, "--json")

    assert done.returncode == 0, done.stderr
    assert server.received[0].body.startswith(b'{"decision":{"state":' + json.dumps(LONG).encode())


def test_the_pages_boto3_code_sends_the_state_first() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    call = f"{code}\nprint(decide({LONG!r}, 'q?', {{'a': 'x', 'b': 'y'}}, id='d')['id'])\n"
    with scripted(GOOD) as endpoint:
        variables = {
            "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": endpoint.url,
            "AWS_REGION": "eu-west-1",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
        }
        done = subprocess.run(
            [sys.executable, "-c", call],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
        )

    assert done.stdout == "d\n", done.stderr
    (request,) = endpoint.received
    assert request.path == "/endpoints/ballot-prod-decision/invocations"
    assert request.body.startswith(b'{"decision": {"state": ' + json.dumps(LONG).encode())


# -- Key order is for routing alone ----------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of an adapter on a model of no size."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    tiny = AdapterProcess(BALLOT_GGUF_PATH=str(path), BALLOT_THREADS="1")
    with tiny.wait_ready() as adapter, adapter.client() as client:
        yield client


STATE = {"text": "The parcel is lost.", "order": [1, 2], "vip": True}
NATIVE: dict[str, Any] = {
    "decision": {
        "state": STATE,
        "id": "d",
        "question": "Is it so?",
        "options": [{"id": "a", "description": "Yes."}, {"id": "b", "description": "No."}],
    },
    "scoring": {"orders": 2, "layout": "evidence_first"},
}
SYSTEM_ONE: dict[str, Any] = {
    "state": STATE,
    "questions": {
        "known": {"type": "noul", "instructions": "Known?", "criteria": {"true": "t", "false": "f"}}
    },
    "model": "jev-latest",
}


def permuted(value: Any, source: random.Random) -> Any:
    """Return a request with the keys of every object but the state in another order."""
    if isinstance(value, list):
        return [permuted(item, source) for item in value]
    if not isinstance(value, dict):
        return value
    names = source.sample(list(value), len(value))
    return {
        name: value[name] if name == "state" else permuted(value[name], source) for name in names
    }


def bits(answer: Any) -> Any:
    """Return an answer without times, and without what was found in memory."""
    if isinstance(answer, list):
        return [bits(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    hidden = ("timing", "cached_tokens")
    return {name: bits(item) for name, item in answer.items() if not name.endswith(hidden)}


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_no_answer_depends_on_the_order_of_keys(tiny: httpx.Client, seed: int) -> None:
    source = random.Random(seed)
    for request in (NATIVE, SYSTEM_ONE):
        straight = tiny.post("/invocations", json=request)
        turned = tiny.post("/invocations", json=permuted(request, source))

        assert straight.status_code == 200, straight.text
        assert bits(turned.json()) == bits(straight.json())
        assert "logits" in json.dumps(bits(straight.json()))


# -- The simulation --------------------------------------------------------------------------------

COLD, WARM, MEGABYTE = 4.0, 1.0, 1_000_000


def ask(time: float, state: str, *, prefix: str | None = None, size: int = MEGABYTE) -> Request:
    return Request(
        time=time,
        prefix=state if prefix is None else prefix,
        state=state,
        state_bytes=size,
        cold_tokens=500,
        warm_tokens=100,
        cold_seconds=COLD,
        warm_seconds=WARM,
    )


def finishes(replayed: Replayed) -> list[float]:
    return [one.finish for one in replayed.served]


def test_one_instance_is_a_queue_with_a_memory() -> None:
    trace = [ask(0, "a"), ask(1, "a"), ask(1.5, "b"), ask(30, "b")]

    replayed = replay(trace, at_random, instances=1)

    # a is decoded until 4, found until 5; b is decoded until 9, and found when it is asked again.
    assert finishes(replayed) == [4, 5, 9, 31]
    assert [one.found for one in replayed.served] == [False, True, False, True]
    assert [one.latency for one in replayed.served] == [4, 4, 7.5, 1]
    assert [one.decoded_tokens for one in replayed.served] == [500, 100, 500, 100]
    assert (replayed.hit_ratio, replayed.decoded_tokens) == (0.5, 300)
    assert replayed.latency(50) == 4
    assert replayed.latency(99) == 7.5


def test_states_used_longest_ago_leave_first() -> None:
    states = ["a", "b", "a", "c", "a", "b"]
    trace = [ask(10 * at, state) for at, state in enumerate(states)]

    replayed = replay(trace, at_random, instances=1, cache_bytes=2 * MEGABYTE)

    # c pushes b out, not a; the last b pushes c out.
    assert [one.found for one in replayed.served] == [False, False, True, False, True, False]


def test_a_state_larger_than_the_cache_is_scored_and_not_kept() -> None:
    trace = [ask(0, "a"), ask(10, "big", size=3 * MEGABYTE), ask(20, "big"), ask(30, "a")]

    replayed = replay(trace, at_random, instances=1, cache_bytes=2 * MEGABYTE)

    assert [one.found for one in replayed.served] == [False, False, False, True]


def test_least_outstanding_fills_the_empty_instance() -> None:
    trace = [ask(0, "a"), ask(1, "a"), ask(2, "a"), ask(2, "a")]

    replayed = replay(trace, least_outstanding, instances=2)

    first, second, *last = [one.instance for one in replayed.served]
    assert {first, second} == {0, 1}
    assert set(last) == {0, 1}
    # Both decode the state: until 4 and 5; then both find it.
    assert sorted(finishes(replayed)) == [4, 5, 5, 6]


def test_a_prefix_has_one_instance_until_the_threshold() -> None:
    trace = [ask(at / 10, "a") for at in range(5)]

    replayed = replay(trace, prefix_aware(3), instances=2)

    own, *_ = instances = [one.instance for one in replayed.served]
    # Three are in flight; the fourth and the fifth find one with none, and with one.
    assert instances == [own, own, own, 1 - own, 1 - own]
    later = replay([*trace, ask(50, "a")], prefix_aware(3), instances=2)
    assert later.served[-1].instance == own


def test_what_has_no_common_prefix_is_spread() -> None:
    trace = [ask(10.0 * at, "a", prefix=str(at)) for at in range(4000)]

    replayed = replay(trace, prefix_aware(1), instances=4)

    shares = [sum(one.instance == at for one in replayed.served) for at in range(4)]
    # 1,000 each, with a standard deviation of 27.
    assert all(900 < share < 1100 for share in shares)


def test_a_new_instance_takes_its_share_of_the_prefixes_and_moves_no_other() -> None:
    trace = [ask(float(at), str(at % 1000)) for at in range(2000)]

    replayed = replay(trace, prefix_aware(1000), instances=4, grown=5)

    before, after = replayed.served[:1000], replayed.served[1000:]
    moved = [(a.instance, b.instance) for a, b in zip(before, after, strict=True)]
    assert {b for a, b in moved if a != b} == {4}
    # A fifth of 1,000, with a standard deviation of 13.
    assert 150 < sum(a != b for a, b in moved) < 250


def test_an_instance_refuses_beyond_its_queue() -> None:
    replayed = replay([ask(0, "a") for _ in range(40)], at_random, instances=1)

    assert (len(replayed.served), replayed.refused) == (33, 7)


def test_the_same_trace_is_replayed_the_same() -> None:
    trace = make_trace("hot", COSTS, instances=2)

    assert replay(trace, at_random, instances=2) == replay(trace, at_random, instances=2)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_waiting_is_as_queueing_theory_has_it(load: float) -> None:
    """Poisson arrivals and constant service: the wait is load / 2 / (1 - load) services (M/D/1)."""
    source = random.Random(1)
    times = itertools.accumulate(source.expovariate(load / WARM) for _ in range(200_000))
    trace = [dataclasses.replace(ask(time, "a"), cold_seconds=WARM) for time in times]

    replayed = replay(trace, least_outstanding, instances=1)

    wait = statistics.fmean(one.latency - WARM for one in replayed.served)
    assert replayed.refused == 0
    assert wait == pytest.approx(load / 2 / (1 - load), rel=0.05)


@settings(max_examples=50, deadline=None)
@given(
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=60),
    states=st.lists(st.sampled_from("abcdef"), min_size=60, max_size=60),
    instances=st.integers(1, 5),
    strategy=st.sampled_from([at_random, least_outstanding, prefix_aware(1), prefix_aware(3)]),
)
def test_what_every_replay_keeps(
    gaps: list[float], states: list[str], instances: int, strategy: Any
) -> None:
    times = list(itertools.accumulate(gaps))
    trace = [ask(time, state) for time, state in zip(times, states[: len(times)], strict=True)]

    replayed = replay(trace, strategy, instances=instances, cache_bytes=2 * MEGABYTE)

    assert len(replayed.served) + replayed.refused == len(trace)
    for number in range(instances):
        own = [one for one in replayed.served if one.instance == number]
        # One after another, in the order of coming, and never idle while one waits.
        free = 0.0
        for one in own:
            assert one.finish == pytest.approx(max(free, one.request.time) + one.seconds)
            free = one.finish
    # Little: the requests in the system, over time, are as many as come times how long they stay.
    changes = sorted(
        change for one in replayed.served for change in ((one.request.time, 1), (one.finish, -1))
    )
    area = count = 0.0
    for (moment, change), (following, _) in itertools.pairwise(changes):
        count += change
        area += count * (following - moment)
    assert area == pytest.approx(sum(one.latency for one in replayed.served))
    assert min(one.latency for one in replayed.served) >= WARM - 1e-9
    assert replayed.imbalance >= 1 - 1e-9


# -- Traces ----------------------------------------------------------------------------------------

COSTS = [
    Cost(
        prefix=f"p{document}",
        document=document,
        state_bytes=10 * MEGABYTE,
        cold_tokens=600,
        warm_tokens=100,
        cold_seconds=2.0,
        warm_seconds=0.2,
    )
    for document in range(8)
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workload_comes_in_order_and_keeps_its_load(workload: str) -> None:
    trace = make_trace(workload, COSTS, instances=3)

    times = [request.time for request in trace]
    assert times == sorted(times)
    assert len(trace) == pytest.approx(3 * REQUESTS_AN_INSTANCE, rel=0.01)
    # The last questions about tickets come a little after the others.
    load = sum(request.cold_seconds for request in trace) / (3 * times[-1])
    assert load == pytest.approx(COLD_LOAD, rel=0.1)
    # A prefix stands for a state, and for no other.
    pairs = {(request.prefix, request.state) for request in trace}
    assert len(pairs) == len({prefix for prefix, _ in pairs}) == len({state for _, state in pairs})


def test_the_workloads_are_what_they_are_called() -> None:
    states = {
        name: [request.state for request in make_trace(name, COSTS, instances=1)]
        for name in WORKLOADS
    }

    assert len(set(states["fresh"])) == REQUESTS_AN_INSTANCE
    assert len(set(states["catalogue"])) <= CATALOGUE
    assert {states["tickets"].count(state) for state in states["tickets"]} == {6}
    most = max(states["hot"].count(state) for state in set(states["hot"]))
    assert most == pytest.approx(0.6 * REQUESTS_AN_INSTANCE, rel=0.1)


def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    trace = [ask(1.5 * at, "a", prefix=f"p{at}") for at in range(100)]
    write_lines(tmp_path / "trace.jsonl", trace)

    assert read_trace(tmp_path / "trace.jsonl") == trace


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"time": 1'], "line 1: "),
        ([json.dumps({**dataclasses.asdict(ask(1, "a")), "more": 1})], "line 1: .*more"),
        ([json.dumps({**dataclasses.asdict(ask(1, "a")), "time": "1"})], "line 1: time must be fl"),
        ([json.dumps({**dataclasses.asdict(ask(1, "a")), "time": -1})], "line 1: time must be fi"),
        ([json.dumps(dataclasses.asdict(ask(1, "a")))] * 99, "has 99 requests; a trace needs 100"),
        (
            [json.dumps(dataclasses.asdict(ask(at, "a"))) for at in (*range(99), 0)],
            "line 100: its time",
        ),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))

    with pytest.raises(BenchError, match=message):
        read_trace(path)


def test_a_trace_of_ones_own_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = [ask(5.0 * at, f"state {at % 40}") for at in range(400)]
    write_lines(tmp_path / "own.jsonl", trace)

    status = routing.main(["--trace", str(tmp_path / "own.jsonl"), "--out", str(tmp_path)])

    assert status == 0, capsys.readouterr().err
    cases = json.loads((tmp_path / "cases.json").read_text())
    assert {case["workload"] for case in cases} == {"own"}
    first = next(case for case in cases if case["instances"] == 1)
    # 40 states are decoded once each, and all of them fit.
    assert first["hit_ratio"] == 0.9
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_page_says_what_a_trace_has() -> None:
    for field in dataclasses.fields(Request):
        assert f"`{field.name}`" in PAGE
