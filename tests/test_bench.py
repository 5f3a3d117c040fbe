"""The bench's arithmetic and its reports, against literals. No timing decides anything here."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import endurance_mix, gpu
from bench.decisions import QUESTIONS, Writer, as_json, ask
from bench.endurance import Counters, Sample, judge
from bench.endurance_callers import Caller, Seen, Solo, code_of, comparable, joined
from bench.endurance_mix import Ask, Mix, Refusal, invalid_requests
from bench.http_client import Connection
from bench.machine import features, is_busy
from bench.model_speed import Variant, rank, thread_counts
from bench.page import page
from bench.plots import curve_plot, nice_end, ratio_plot
from bench.report import ModelRun, Run, cells
from bench.rows import (
    ADAPTER,
    LIMIT,
    PEER,
    REFERENCE,
    Curve,
    Outcome,
    Row,
    Target,
    at_most,
    compare,
)
from bench.scenarios import Plan, move
from bench.soak import growth
from bench.stats import Spread, alternate, drift, exactly, paired_ratio, spread
from bench.vitals import Vitals, vitals
from scripts._console import SetupError
from tests.adapter_process import ROOT
from tests.cli_process import Scripted, ScriptedServer
from tests.gguf_models import write_tiny_model
from tests.wire import documented_errors


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([7.0], Spread(7.0, 7.0, 7.0, 1)),
        ([3.0, 1.0], Spread(2.0, 1.5, 2.5, 2)),
        # The first, second and third quartile of 1 to 5 are 2, 3 and 4.
        ([5.0, 1.0, 4.0, 2.0, 3.0], Spread(3.0, 2.0, 4.0, 5)),
        ([1.0, 2.0, 3.0, 1000.0], Spread(2.5, 1.75, 252.25, 4)),
    ],
)
def test_a_spread_is_the_median_and_the_quartiles(samples: list[float], expected: Spread) -> None:
    assert spread(samples) == expected


def test_a_ratio_is_taken_pair_by_pair() -> None:
    # The ratio of the medians would be 2.0 / 4.0.
    assert paired_ratio([1.0, 2.0, 30.0], [2.0, 8.0, 4.0]).median == 0.5
    assert paired_ratio([10.0, 2.0, 3.0], [10.0, 8.0, 4.0]) == Spread(0.75, 0.5, 0.875, 3)


def test_an_allowance_is_taken_off_before_the_ratio() -> None:
    assert paired_ratio([1.5], [2.0], less=0.5).median == 0.5


def test_sides_take_turns_and_every_other_turn_goes_backwards() -> None:
    calls: list[str] = []

    def side(name: str) -> Callable[[int], float]:
        def sample(index: int) -> float:
            calls.append(f"{name}{index}")
            return float(index)

        return sample

    samples = alternate({"a": side("a"), "b": side("b"), "c": side("c")}, pairs=3)

    assert calls == ["a0", "b0", "c0", "c1", "b1", "a1", "a2", "b2", "c2"]
    assert samples == {"a": [0.0, 1.0, 2.0], "b": [0.0, 1.0, 2.0], "c": [0.0, 1.0, 2.0]}


def test_a_drift_is_the_usual_slope_over_the_whole_time() -> None:
    rising = [(float(x), 100 + 0.5 * x) for x in range(0, 101, 10)]
    assert drift(rising) == Spread(50.0, 50.0, 50.0, 11)
    # A quarter of the points being off moves nothing.
    off = [(x, 9e9) if x in (20, 90) else (x, y) for x, y in rising]
    assert drift(off).median == 50.0
    assert drift([(0.0, 7.0), (1.0, 9.0), (2.0, 7.0)]).median == 0.0


def test_vitals_are_those_of_the_process() -> None:
    before = vitals()
    ends = os.pipe()
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    ballast = bytearray(64 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    after = vitals(os.getpid())
    done.set()
    thread.join()
    for end in ends:
        os.close(end)

    assert after.descriptors == before.descriptors + 2
    assert after.threads == before.threads + 1
    for grown in (
        after.resident_bytes - before.resident_bytes,
        after.anonymous_bytes - before.anonymous_bytes,
        after.proportional_bytes - before.proportional_bytes,
    ):
        assert grown == pytest.approx(len(ballast), rel=0.1)


@pytest.mark.parametrize(
    ("target", "value", "met", "words"),
    [
        (at_most(0.85), 0.85, True, "≤ 0.85"),
        (at_most(0.85), 0.8501, False, "≤ 0.85"),
        (at_most(1.05, plus_seconds=0.003), 1.05, True, "≤ 1.05 + 3 ms"),
        (Target("at least", 0.97), 0.97, True, "≥ 0.97"),
        (Target("at least", 0.97), 0.96, False, "≥ 0.97"),
        (Target("exactly", 0.0), 0.0, True, "= 0"),
        (Target("exactly", 0.0), 1e-12, False, "= 0"),
    ],
)
def test_targets(target: Target, value: float, met: bool, words: str) -> None:
    assert target.is_met(value) is met
    assert str(target) == words


def test_each_other_side_gets_a_row_with_its_own_target() -> None:
    samples = {ADAPTER: [0.103, 0.203], REFERENCE: [0.2, 0.4], LIMIT: [0.1, 0.2], PEER: [0.1, 0.1]}
    targets = {REFERENCE: at_most(0.5), LIMIT: at_most(1.05, plus_seconds=0.003)}

    reference, limit, peer = compare("row", "what", samples, targets, note="a note")

    assert (reference.against, reference.verdict) == (REFERENCE, "miss")
    assert reference.value.median == pytest.approx(0.51125)
    assert (limit.against, limit.verdict) == (LIMIT, "pass")
    assert limit.value.median == pytest.approx(1.0)
    assert (peer.against, peer.verdict, peer.target) == (PEER, "", None)
    assert peer.ours is not None
    assert peer.ours.median == pytest.approx(0.153)
    assert peer.theirs == Spread(0.1, 0.1, 0.1, 2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"A": -1.0, "B": -2.0}, {"A": -1.0, "B": -2.0}, 0.0),
        ({"A": -1.0, "B": -2.0}, {"A": -1.5, "B": -1.75}, 0.5),
        ({"A": -1.0, "B": -2.0}, {"B": -2.25}, 0.25),
        ({"A": -1.0}, {"B": -1.0}, float("inf")),
    ],
)
def test_a_move_is_the_largest_difference(
    one: dict[str, float], other: dict[str, float], expected: float
) -> None:
    assert move(one, other) == expected


def test_growth_compares_the_end_with_a_fifth_of_the_way() -> None:
    filling = [10.0 * step for step in range(20)]
    assert growth([*filling, *[200.0] * 80]) == 1.0
    assert growth([100.0] * 90 + [103.0] * 10) == pytest.approx(1.03)
    assert growth([50.0]) == 1.0


def test_plans_repeat_as_the_row_says_or_as_told() -> None:
    assert Plan().times(24) == 24
    assert Plan(2).times(24) == 2


def words(text: str) -> int:
    return len(text.split())


def test_states_have_the_wanted_length_and_differ_from_the_start() -> None:
    writer = Writer(words)
    states = [writer.state(200, seed=f"seed {number}") for number in range(20)]

    assert all(200 <= words(state) < 225 for state in states)
    assert len({state[:80] for state in states}) == 20
    assert writer.state(200, seed="seed 7") == states[7]


def test_the_sixteen_questions_are_decisions_of_two_to_four_options() -> None:
    asked = [as_json(ask("a state", number)) for number in range(QUESTIONS)]

    assert QUESTIONS == 16
    assert len({decision["question"] for decision in asked}) == 16
    assert {len(decision["options"]) for decision in asked} == {2, 3, 4}
    assert asked[1] == {
        "id": "q1",
        "state": "a state",
        "question": "How urgent is this?",
        "options": [
            {"id": "option-0", "description": "It can wait a week."},
            {"id": "option-1", "description": "It should be seen today."},
            {"id": "option-2", "description": "It is urgent now."},
        ],
    }


FAST = Row(
    name="fresh-short",
    what="a fresh <short> decision",
    against=REFERENCE,
    value=Spread(0.5, 0.4, 0.6, 5),
    target=at_most(0.85),
    ours=Spread(0.1, 0.1, 0.1, 5),
    theirs=Spread(0.2, 0.2, 0.2, 5),
    note="90 of 130 tokens decoded",
)
LEAKY = Row(
    name="startup",
    what="memory",
    against="bare",
    value=exactly(91.5),
    target=at_most(80),
    unit="MiB",
)
BY_LENGTH = Curve("Cost", "tokens", "ms", {ADAPTER: [(100, 50), (200, 90)], LIMIT: [(100, 40)]})


@pytest.fixture
def run() -> Run:
    return Run(
        started="2026-01-02T03:04:05+00:00",
        machine={"cpu": "A & B", "cpus": 2},
        peer=None,
        load_before=[0.1, 0.2, 0.3],
        models=[
            ModelRun(
                "tiny.gguf",
                {"event": "model_loaded", "quantization": "Q4_1", "threads": 2},
                Outcome([FAST, LEAKY], [BY_LENGTH]),
            )
        ],
    )


def test_the_tables_cells() -> None:
    assert cells(FAST) == (
        "a fresh <short> decision",
        "reference path",
        "100 ms",
        "200 ms",
        "0.500",
        "0.4 to 0.6 (n=5)",
        "≤ 0.85",
        "pass",
    )
    assert cells(LEAKY) == ("memory", "bare", "", "", "91.5 MiB", "(n=1)", "≤ 80", "miss")


def test_the_files_hold_every_row_with_its_verdict(run: Run, tmp_path: Path) -> None:
    bench.write(run, tmp_path / "new")

    report = json.loads((tmp_path / "new" / "report.json").read_text())
    (model,) = report["models"]
    rows = model["outcome"]["rows"]
    assert [(row["name"], row["verdict"]) for row in rows] == [
        ("fresh-short", "pass"),
        ("startup", "miss"),
    ]
    assert rows[0]["value"] == {"median": 0.5, "low": 0.4, "high": 0.6, "count": 5}
    assert rows[0]["target"] == "≤ 0.85"
    assert model["outcome"]["curves"][0]["series"]["adapter"] == [[100, 50], [200, 90]]
    assert model["identity"]["quantization"] == "Q4_1"
    assert report["machine"] == {"cpu": "A & B", "cpus": 2}
    assert run.misses == 1


def test_the_page_needs_nothing_else(run: Run) -> None:
    html = page(run)

    assert "a fresh &lt;short&gt; decision<small>90 of 130 tokens decoded</small>" in html
    assert '<td class="miss">miss</td>' in html
    assert "A &amp; B" in html
    assert html.count("<svg") == 2
    for outside in ("http:", "https:", "src=", "href=", "<script", "url(", "@import"):
        assert outside not in html


def test_the_plot_of_ratios_has_a_line_for_each_ratio() -> None:
    svg = ElementTree.fromstring(ratio_plot([FAST, LEAKY]))

    dots = svg.findall(".//circle")
    assert [dot.get("class") for dot in dots] == ["dot pass"]
    assert len(svg.findall(".//line[@class='target']")) == 1
    # 0.05 to 4 lie on 460 logarithmic units from 380 on: 0.5 is at ln(10) / ln(80) of them.
    assert dots[0].get("cx") == "621.7"


def test_a_curve_has_a_line_for_each_series() -> None:
    svg = ElementTree.fromstring(curve_plot(BY_LENGTH))

    lines = svg.findall(".//polyline")
    # 200 tokens are the right end of the axis; 100 ms, the round number above 90, its top.
    assert [line.get("points") for line in lines] == ["455.0,147.0 840.0,45.4", "455.0,172.4"]
    assert [line.get("class") for line in lines] == ["s0", "s1"]
    assert curve_plot(Curve("empty", "x", "y", {})) == ""


@pytest.mark.parametrize(
    ("value", "end"), [(90, 100), (100, 100), (101, 200), (0.3, 0.4), (5, 8), (0, 1)]
)
def test_axes_end_at_round_numbers(value: float, end: float) -> None:
    assert nice_end(value) == pytest.approx(end)


def test_variants_are_ranked_by_their_share_of_the_fastest() -> None:
    slow, fast = (Variant("quantization", name, Path(), 128, 2) for name in ("Q4_1", "Q4_0"))

    first, second = rank([slow, fast], [[300.0, 400.0, 410.0], [1000.0, 990.0, 1010.0]])

    assert (first.name, first.tokens_per_second.median, first.of_the_fastest) == ("Q4_1", 400, 0.4)
    assert (second.name, second.of_the_fastest) == ("Q4_0", 1.0)


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_thread_counts(most: int, counts: list[int]) -> None:
    assert thread_counts(most) == counts


def test_features_are_those_that_choose_kernels() -> None:
    assert features("fpu avx2 avx512f sse2 avx512_vnni") == ["avx2", "avx512f", "avx512_vnni"]
    assert features("fp asimd evtstrm i8mm") == ["asimd", "i8mm"]


@pytest.mark.parametrize(
    ("load", "cpus", "busy"),
    [([0.5, 9, 9], 2, False), ([0.6, 0, 0], 2, True), ([3.9, 0, 0], 16, False)],
)
def test_a_machine_with_other_work_is_told(load: list[float], cpus: int, busy: bool) -> None:
    assert is_busy(load, cpus) is busy


def test_without_a_gpu_the_gpu_bench_says_so_in_a_line() -> None:
    def only_the_compiler(name: str) -> str | None:
        return None if name == "nvidia-smi" else f"/usr/bin/{name}"

    with pytest.raises(SetupError) as refusal:
        gpu.list_gpus(only_the_compiler)
    assert str(refusal.value) == "this machine has no NVIDIA GPU: there is no nvidia-smi"


@pytest.mark.parametrize(
    ("environ", "arguments", "message"),
    [
        ({"LLAMA_SERVER": "/nowhere/llama-server"}, [], "LLAMA_SERVER names no file: /nowhere"),
        ({}, ["--model", "/nowhere/x.gguf"], "there is no model file /nowhere/x.gguf"),
    ],
)
def test_what_is_not_there_stops_the_bench_with_a_line(
    environ: dict[str, str],
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert bench.main(arguments) == 1
    assert capsys.readouterr().err.startswith(f"bench: {message}")


COMMANDS = re.findall(
    r"^\| `(?:LLAMA_SERVER=path )?make ((?:bench|endurance|routing)[^`]*)` \|",
    (ROOT / "bench/README.md").read_text(),
    re.MULTILINE,
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_is_shown_is_a_target_of_make(command: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *shlex.split(command)], cwd=ROOT, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert " -m bench" in done.stdout.splitlines()[-1]
    options = re.sub(r"^.* -m bench(?:\.\w+)?", "", done.stdout.splitlines()[-1])
    assert all(value in options for value in re.findall(r"=\"?([^\"]+)\"?$", command))


def test_the_table_of_commands_is_read() -> None:
    assert len(COMMANDS) == 10


# -- Endurance -------------------------------------------------------------------------------------

VALID = Ask("fresh-0", b"{}")
INVALID = Ask("wrong_type", b"[]", refusal=Refusal(400, "wrong_type"))
RESULT = {"result": {"id": "d", "option_logits": [1.5, -2.25], "timing": {"total_seconds": 0.5}}}
SOLO = {"fresh-0": Solo({"result": {"id": "d", "option_logits": [1.5, -2.25]}}, seconds=5.0)}


def see(requests: int, *answers: Scripted) -> Seen:
    """Let a caller ask a scripted adapter so many times."""
    turns = iter(range(requests))
    mix = Mix({"fresh": [VALID]}, [INVALID])
    with ScriptedServer(*answers) as server:
        port = int(server.url.rpartition(":")[2])
        with Connection(port) as connection:
            caller = Caller(connection, mix, SOLO, seed="caller 0", callers=8)
            return caller.ask_until(lambda: next(turns, None) is None)


def test_callers_find_what_differs_and_what_is_not_refused_as_it_has_to_be() -> None:
    right = see(30, Scripted.of(RESULT))
    moved = {"result": {**RESULT["result"], "option_logits": [1.5, -2.2500000000000004]}}
    wrong = see(30, Scripted.of(moved))
    broken = see(30, Scripted(200, b"{"))

    # The scripted adapter takes the invalid requests for valid ones.
    assert {fault.kind for fault in right.faults} == {"wrong refusal"}
    assert right.count("wrong refusal") == right.kinds["invalid"] > 0
    assert wrong.count("differs") == wrong.kinds["fresh"] > 15
    assert broken.count("differs") == broken.kinds["fresh"] > 15
    assert right.sent == wrong.sent == broken.sent == 30


def test_callers_find_refusals_and_silence() -> None:
    refused = see(30, Scripted.of({"code": "busy"}, status=503))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    turns = iter(range(9))
    with Connection(port) as connection:
        caller = Caller(connection, Mix({"fresh": [VALID]}, [INVALID]), SOLO, seed="a", callers=1)
        silent = caller.ask_until(lambda: next(turns, None) is None)

    assert refused.count("refused") == refused.kinds["fresh"] > 15
    assert refused.answered == {("/invocations", "busy"): refused.answered.total()}
    assert silent.count("unanswered") == silent.sent == 9


def test_answers_are_compared_by_what_they_say() -> None:
    one = {"answers": {"q": {"noul": 0.5, "x_cached_tokens": 7}}, "x_timing": {"a": 1}}
    lines = b'{"result": {"cached_tokens": 1, "id": "d"}}\n{"code": "c", "request_id": "r"}\n'

    assert comparable(VALID, json.dumps(one).encode()) == {"answers": {"q": {"noul": 0.5}}}
    of_lines = Ask("lines-0", b"", headers=endurance_mix.LINES)
    assert comparable(of_lines, lines) == [{"result": {"id": "d"}}, {"code": "c"}]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b'{"error": "no", "code": "busy"}', "busy"),
        (b'{"detail": [{"loc": ["body"], "type": "wrong_type"}]}', "wrong_type"),
        (b'{"detail": {"error_type": "not_found"}}', "not_found"),
        (b"<html>", ""),
        (b"[]", ""),
    ],
)
def test_codes_of_both_formats(answer: bytes, code: str) -> None:
    assert code_of(answer) == code


def test_invalid_requests_expect_what_is_documented() -> None:
    documented = documented_errors()
    for ask_ in invalid_requests(4096):
        assert ask_.refusal is not None
        status, _ = documented[ask_.refusal.code]
        assert ask_.refusal.status in ((status, 422) if status == 400 else (status,)), ask_.name


def still(count: int, **changes: Callable[[int], int]) -> list[Sample]:
    """Return samples of an adapter that holds 100 MiB, but for what changes with the time."""
    usual = {
        "resident_bytes": 100 << 20,
        "anonymous_bytes": 90 << 20,
        "proportional_bytes": 95 << 20,
        "descriptors": 20,
        "threads": 9,
    }
    return [
        Sample(
            seconds=float(at),
            vitals=Vitals(**{**usual, **{name: how(at) for name, how in changes.items()}}),
            waiting=6.0,
            answered=10 * at,
        )
        for at in range(count)
    ]


def misses(seen: Seen, counted: Counters, samples: list[Sample]) -> list[str]:
    rows = judge(seen, samples, counted, SOLO).rows
    return [row.what for row in rows if row.verdict == "miss"]


def test_an_adapter_that_holds_still_and_counts_right_misses_nothing() -> None:
    seen = Seen(
        answered=Counter({("/invocations", "ok"): 90, ("other", "not_found"): 3}),
        left=Counter({"/invocations": 5}),
    )
    # Two of the five that hung up had been answered by then.
    counted = Counter(
        {
            ("/invocations", "ok"): 92,
            ("/invocations", "caller_gone"): 3,
            ("other", "not_found"): 3,
        }
    )
    assert misses(seen, Counters(counted, 100, 0), still(100)) == []

    counted["/invocations", "caller_gone"] = 2
    assert misses(seen, Counters(counted, 100, 0), still(100)) == [
        "requests that /metrics counts otherwise"
    ]
    counted["/invocations", "caller_gone"] = 3
    counted["/invocations", "internal_error"] = 1
    assert len(misses(seen, Counters(counted, 100, 0), still(100))) == 1


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        # Filling up in the first fifth is no growth.
        ({"resident_bytes": lambda at: (50 + min(at, 20)) << 20}, None),
        ({"resident_bytes": lambda at: (100 << 20) + at * 30_000}, "resident memory"),
        ({"anonymous_bytes": lambda at: (90 << 20) + at * 30_000}, "anonymous memory"),
        ({"descriptors": lambda at: 20 + at // 20}, "file descriptors"),
        ({"threads": lambda at: 9 + at // 20}, "threads"),
        # Callers come and go.
        ({"descriptors": lambda at: 20 + at % 3}, None),
    ],
)
def test_what_grows_is_found(change: dict[str, Callable[[int], int]], missed: str | None) -> None:
    found = misses(Seen(), Counters(Counter(), 0, 0), still(100, **change))

    assert found == ([f"growth of {missed} after 20% of the time"] if missed else [])


def test_what_callers_saw_is_added_up() -> None:
    one = Seen(Counter({("/a", "ok"): 1}), Counter({"/a": 2}), Counter({"hot": 1}))
    assert joined([one, one, Seen()]).sent == 6


def test_endurance_runs(tmp_path: Path) -> None:
    """A few seconds on a random model of no size: memory still fills up, all else holds."""
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model, chat_template=None)
    out = tmp_path / "out"
    arguments = ["--model", str(model), "--minutes", "0.05", "--states", "8", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.endurance", *arguments, "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "container"},
        capture_output=True,
        text=True,
    )

    assert (out / "report.json").exists(), done.stderr
    raw = json.loads((out / "endurance.json").read_text())
    assert raw["faults"] == []
    assert len(raw["samples"]) > 1
    (measured,) = json.loads((out / "report.json").read_text())["models"]
    rows = {row["what"]: row for row in measured["outcome"]["rows"]}
    counts = [row for row in rows.values() if row["against"] == "none" and "ests" in row["unit"]]
    assert [row["value"]["median"] for row in counts] == [0] * 5
    compared = rows["answers that differ from those given alone"]["note"]
    # Both formats, all layouts and JSON Lines were asked alone; some of them again at full load.
    assert re.match(r"[1-9]\d* answers to 117 requests; ", compared)


def test_the_bench_runs(tmp_path: Path) -> None:
    """Two turns of the rows that a random model of no size can take, from start to report."""
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model, chat_template=None)
    rows = ["fresh-short", "moves"]
    arguments = ["--model", str(model), "--repeat", "2", "--out", str(tmp_path), "--rows", *rows]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "container", "LLAMA_SERVER": ""},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    (measured,) = report["models"]
    assert measured["failures"] == []
    assert {row["name"] for row in measured["outcome"]["rows"]} == set(rows)
    moved = [row for row in measured["outcome"]["rows"] if row["name"] == "moves"]
    assert [row["value"]["median"] for row in moved] == [0.0]
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
