"""What `ballot` writes: in a terminal, without colour, into a pipe, and as help."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adapter_process import ROOT, AdapterProcess
from tests.cli_process import (
    MODEL,
    Scripted,
    ScriptedServer,
    ballot,
    ballot_in_terminal,
    result,
)

SNAPSHOTS = ROOT / "tests/snapshots/cli"
UPDATE = "BALLOT_UPDATE_SNAPSHOTS"
SUPPORT_ROUTE = "examples/support-route.json"
SHARED_STATE = "examples/shared-state.json"
ESCAPE = "\x1b"
COMMANDS = (
    "decide",
    "chat",
    "evaluate",
    "bench",
    "endpoints",
    "doctor",
    "gateway",
    "calibrate",
    "threshold",
    "report",
    "compare",
    "batch",
    "batch run",
    "batch submit",
    "batch wait",
    "batch fetch",
)

RESULT = result("support-route", {"account_access": 0.8123, "billing": 0.1541, "sales": 0.0336})


def order(*probabilities: float) -> dict[str, Any]:
    """Return the scores in one order of `next-step`'s options."""
    whole = result("", dict(zip("abcd", probabilities, strict=True)))
    names = ("probabilities", "option_logits", "answer_token_ids", "input_tokens")
    more = ("cached_tokens", "allowed_token_mass", "prompt_sha256")
    return {name: whole[name] for name in names + more}


RESULTS = [
    result("refund-allowed", {"yes": 0.37, "no": 0.63}, mass=0.311),
    result(
        "next-step",
        {"refund": 0.1, "store_credit": 0.3, "ask_receipt": 0.55, "escalate": 0.05},
        orders=[order(0.1, 0.6, 0.25, 0.05), order(0.1, 0.1, 0.75, 0.05)],
        orders_agree=False,
    ),
]
TIMING = {"queue_seconds": 0.0, "forward_seconds": 0.8, "total_seconds": 0.9}

SYSTEM_ONE_REQUEST = {
    "model": "jev-latest",
    "state": "The web shop has been down since nine.",
    "questions": {
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "team": {
            "type": "choice",
            "instructions": {"task": "Who takes it?"},
            "criteria": {"operations": "Runs the servers.", "billing": None},
        },
        "severity": {
            "type": "score",
            "instructions": "How bad is it?",
            "criteria": ["fine", "bad", "terrible"],
        },
    },
}
SYSTEM_ONE_ANSWER: dict[str, Any] = {
    "model": "qwen35",
    "answers": {
        "urgent": {"type": "noul", "noul": 0.93},
        "team": {
            "type": "choice",
            "choice": "operations",
            "probabilities": {"operations": 0.9, "billing": 0.1},
            "confidence": 0.8,
        },
        "severity": {
            "type": "score",
            "score": 1.6,
            "legend": {"0": "fine", "1": "bad", "2": "terrible"},
            "probabilities": {"0": 0.1, "1": 0.2, "2": 0.7},
            "confidence": 0.55,
        },
    },
    "usage": {"input_tokens": 300, "output_tokens": 0},
}
CHAT_ANSWER = {
    "model": "smollm2.gguf",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Red, blue."}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
}


def check_snapshot(name: str, written: str) -> None:
    """Compare with the snapshot; BALLOT_UPDATE_SNAPSHOTS=1 writes it anew, for review."""
    readable = written.replace(ESCAPE, "␛")
    snapshot = SNAPSHOTS / f"{name}.txt"
    if os.environ.get(UPDATE):
        snapshot.write_text(readable, "utf-8")
    assert readable == snapshot.read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "request_file", "answer"),
    [
        ("decide-one", SUPPORT_ROUTE, {"result": RESULT}),
        ("decide-several", SHARED_STATE, {"results": RESULTS, "timing": TIMING}),
    ],
)
def test_decide_reads_well_in_colour_without_and_in_a_pipe(
    name: str, request_file: str, answer: dict[str, Any]
) -> None:
    with ScriptedServer(Scripted.of(answer)) as server:
        arguments = ("decide", request_file, "--url", server.url)
        coloured = ballot_in_terminal(*arguments)
        plain = ballot_in_terminal(*arguments, NO_COLOR="1")
        piped = ballot(*arguments)
    assert (coloured.returncode, plain.returncode, piped.returncode) == (0, 0, 0)
    check_snapshot(f"{name}-colour", coloured.stdout)
    check_snapshot(f"{name}-piped", piped.stdout)
    assert re.sub(rf"{ESCAPE}\[[\d;]*m", "", coloured.stdout) == plain.stdout == piped.stdout
    assert ESCAPE not in plain.stdout


def test_a_system_one_request_is_shown_question_by_question() -> None:
    told = {"x_model": MODEL, "x_timing": RESULT["timing"]}
    usage = {**SYSTEM_ONE_ANSWER["usage"], "x_cached_tokens": 120}
    answers = {
        name: {**answer, "x_allowed_token_mass": mass}
        for (name, answer), mass in zip(
            SYSTEM_ONE_ANSWER["answers"].items(), (0.99, 0.31, 0.7), strict=True
        )
    }
    ours = {**SYSTEM_ONE_ANSWER, **told, "usage": usage, "answers": answers}
    asked = json.dumps(SYSTEM_ONE_REQUEST)
    with ScriptedServer(Scripted.of(ours), Scripted.of(SYSTEM_ONE_ANSWER)) as server:
        arguments = ("decide", "-", "--url", server.url)
        check_snapshot("systemone", ballot(*arguments, stdin=asked).stdout)
        check_snapshot("systemone-of-others", ballot(*arguments, stdin=asked).stdout)
        assert [request.path for request in server.received] == ["/v1/systemone"] * 2
        assert json.loads(server.received[0].body) == SYSTEM_ONE_REQUEST


def test_a_request_arrives_as_it_was_written() -> None:
    with ScriptedServer(Scripted.of({"result": RESULT})) as server:
        assert ballot("decide", SUPPORT_ROUTE, "--url", server.url).returncode == 0
        scored = ("--orders", "2", "--layout", "criterion_first", "--key", "secret")
        assert ballot("decide", SUPPORT_ROUTE, "--url", server.url, *scored).returncode == 0
    written = json.loads((ROOT / SUPPORT_ROUTE).read_text())
    first, second = (json.loads(request.body) for request in server.received)
    assert first == written
    assert second == {**written, "scoring": {"orders": 2, "layout": "criterion_first"}}
    assert server.received[1].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("request_text", "answer"),
    [
        ((ROOT / SUPPORT_ROUTE).read_text(), {"result": RESULT}),
        ((ROOT / SHARED_STATE).read_text(), {"results": RESULTS}),
        (json.dumps(SYSTEM_ONE_REQUEST), {**SYSTEM_ONE_ANSWER, "x_new": [0.1, "é"]}),
    ],
)
def test_json_is_the_answer_alone(request_text: str, answer: dict[str, Any]) -> None:
    with ScriptedServer(Scripted.of(answer)) as server:
        ended = ballot("decide", "-", "--url", server.url, "--json", stdin=request_text)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == answer


def test_colour_can_be_forced_into_a_pipe_and_no_color_counts_more() -> None:
    with ScriptedServer(Scripted.of({"result": RESULT})) as server:
        arguments = ("decide", SUPPORT_ROUTE, "--url", server.url)
        assert ESCAPE in ballot(*arguments, FORCE_COLOR="1").stdout
        assert ESCAPE not in ballot(*arguments, FORCE_COLOR="1", NO_COLOR="1").stdout
        assert ESCAPE not in ballot_in_terminal(*arguments, TERM="dumb").stdout


def test_the_documented_output_is_the_real_one() -> None:
    shown = (SNAPSHOTS / "decide-one-piped.txt").read_text("utf-8")
    assert f"```text\n{shown}```" in (ROOT / "docs/cli.md").read_text("utf-8")


def test_the_adapters_own_answer_comes_through_bit_for_bit(
    adapter: AdapterProcess, client: httpx.Client, support_route: dict[str, Any]
) -> None:
    ended = ballot("decide", SUPPORT_ROUTE, "--url", adapter.url, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)["result"]
    direct = client.post("/invocations", json=support_route).json()["result"]
    varying = {"timing", "cached_tokens"}
    assert {k: v for k, v in found.items() if k not in varying} == {
        k: v for k, v in direct.items() if k not in varying
    }
    checked = ballot("doctor", "--url", adapter.url)
    assert checked.returncode == 0, checked.stdout
    assert "account_access" in ballot("decide", SUPPORT_ROUTE, "--url", adapter.url).stdout


def exchange(
    probabilities: dict[str, float], *, id: str = "an-id", question: str = "Which?"
) -> tuple[str, Scripted]:
    """Return a request with these options and its answer."""
    options = [{"id": option, "description": "An option."} for option in probabilities]
    decision = {"id": id, "state": "A state.", "question": question, "options": options}
    answer = {"result": result(id, probabilities)}
    return json.dumps({"decision": decision}), Scripted.of(answer)


def test_a_pipe_gets_everything_and_a_narrow_terminal_what_fits(tmp_path: Path) -> None:
    long = "an_option_with_a_long_name_" * 8
    request, answer = exchange({long: 0.75, "billing": 0.25})
    file = tmp_path / "request.json"
    file.write_text(request)
    with ScriptedServer(answer) as server:
        arguments = ("decide", str(file), "--url", server.url)
        piped = ballot(*arguments, COLUMNS="20").stdout
        shown = ballot_in_terminal(*arguments, columns=60, NO_COLOR="1").stdout
    assert f"▸ {long}  0.7500  {'█' * 18}\n" in piped
    rows = [line for line in shown.splitlines() if "0." in line and "█" in line]
    assert len(rows) == 2
    assert all(len(line) <= 60 for line in rows)
    assert "…  0.7500  ██" in rows[0]


def test_an_output_that_is_not_unicode_gets_bars_and_escapes_that_it_can_hold() -> None:
    request, answer = exchange({"größe": 0.75, "billing": 0.25})
    with ScriptedServer(answer) as server:
        arguments = ("decide", "-", "--url", server.url)
        table = ballot(*arguments, stdin=request, PYTHONIOENCODING="ascii")
        as_json = ballot(*arguments, "--json", stdin=request, PYTHONIOENCODING="ascii")
    assert (table.returncode, as_json.returncode) == (0, 0)
    assert table.stdout.isascii()
    assert f"{'#' * 18}\n" in table.stdout
    assert json.loads(as_json.stdout) == json.loads(answer.body)


def test_nothing_that_is_shown_can_steer_the_terminal() -> None:
    wicked = "\x1b[2Jgone\x07\u202e\n"
    request, answer = exchange({wicked: 0.6, "b": 0.4}, id=wicked, question=wicked)
    with ScriptedServer(answer) as server:
        shown = ballot("decide", "-", "--url", server.url, stdin=request).stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    assert r"▸ \x1b[2Jgone\x07\u202e\n" in shown


def event(text: str) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def test_chat_prints_what_is_said_and_ends_the_line() -> None:
    events = event("Red, ") + event("blue.") + b"data: [DONE]\n\n"
    stream = Scripted(200, events, {"content-type": "text/event-stream"})
    with ScriptedServer(stream, Scripted.of(CHAT_ANSWER)) as server:
        streamed = ballot("chat", "Colours?", "--url", server.url, "--max-tokens", "9")
        arguments = ("chat", "-", "--url", server.url, "--no-stream", "--system", "Be brief.")
        whole = ballot(*arguments, stdin="Colours?")
    assert (streamed.returncode, streamed.stdout) == (0, "Red, blue.\n")
    assert (whole.returncode, whole.stdout) == (0, "Red, blue.\n")
    question = {"role": "user", "content": "Colours?"}
    assert [json.loads(request.body) for request in server.received] == [
        {"messages": [question], "max_tokens": 9, "stream": True},
        {"messages": [{"role": "system", "content": "Be brief."}, question]},
    ]


def test_a_model_cannot_steer_the_terminal_it_is_shown_in() -> None:
    events = event("a\x1b[2") + event("J\tb\n") + b"data: [DONE]\n\n"
    stream = Scripted(200, events, {"content-type": "text/event-stream"})
    with ScriptedServer(stream) as server:
        shown = ballot_in_terminal("chat", "Go.", "--url", server.url)
        piped = ballot("chat", "Go.", "--url", server.url)
    assert shown.stdout == "a\\x1b[2J\tb\n"
    assert piped.stdout == "a\x1b[2J\tb\n"


def test_doctor_and_a_server() -> None:
    with ScriptedServer(Scripted.of({"result": doctor_result()}), ping=Scripted(200)) as server:
        ended = ballot("doctor", "--url", server.url)
        coloured = ballot_in_terminal("doctor", "--url", server.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    check_snapshot("doctor-server", ended.stdout.replace(server.url, "http://127.0.0.1:8080"))
    assert f"{ESCAPE}[32m✓{ESCAPE}[0m server" in coloured.stdout


def doctor_result() -> dict[str, Any]:
    return result("ballot-doctor", {"account_access": 0.91, "billing": 0.09}, mass=0.2)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_in_80_columns(command: str) -> None:
    ended = ballot_in_terminal(*command.split(), "--help")
    assert ended.returncode == 0
    assert max(map(len, ended.stdout.splitlines())) <= 80
    assert "..." not in re.sub(r"(\[ARGS\]|\{RUN\})\.\.\.", "", ended.stdout)
    check_snapshot(f"help-{command.replace(' ', '-') or 'ballot'}", ended.stdout)


def test_ballot_alone_shows_its_help_and_is_wrong_usage() -> None:
    ended = ballot()
    assert ended.returncode == 2
    assert ended.stdout == ballot("--help").stdout


def test_the_version_is_the_packages() -> None:
    import ballot as package

    ended = ballot("--version")
    assert (ended.returncode, ended.stdout) == (0, f"ballot {package.__version__}\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+", package.__version__)
