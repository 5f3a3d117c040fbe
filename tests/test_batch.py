"""`ballot batch run`: each line answered once, in order, whatever happens in between."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapter_process import PATIENCE, ROOT, AdapterProcess
from tests.cli_process import (
    COMMAND,
    Received,
    Scripted,
    aws_environment,
    ballot,
    ballot_in_terminal,
    clean_environment,
)
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model
from tests.lines_server import ANSWER, BREAK, LinesServer, decision, encoded

DECISIONS = 10_000
# What a bad line is, and the error and the id that it gets.
BAD_LINES: tuple[tuple[bytes, str, bool], ...] = (
    (b'{"decision": {"id": "d-%d", "state": "s"', "invalid_json", False),
    (b'{"decision": {"id": "d-%d", "state": "s"}}', "missing_field", True),
    (b"  ", "empty_line", False),
    (b'{"decision": {"id": "d-%d", "state": "\xff"}}', "invalid_encoding", False),
)


def bad_line(number: int) -> tuple[bytes, str, bool]:
    """Return the bad line that stands at a number, the code that it gets, and whether an id."""
    line, code, has_id = BAD_LINES[number // 100 % len(BAD_LINES)]
    return line.replace(b"%d", str(number).encode()), code, has_id


def mixed(count: int) -> bytes:
    """Return decisions as lines, of which each hundredth is bad."""
    return encoded(*(decision(n) if n % 100 else bad_line(n)[0] for n in range(1, count + 1)))


class Work:
    """A run of `ballot batch run` in a folder: its input, its output, and how it went."""

    def __init__(self, folder: Path, content: bytes, name: str = "in.jsonl") -> None:
        self.input, self.output = folder / name, folder / "out.jsonl"
        self.input.write_bytes(content)

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("batch", "run", str(self.input), "-o", str(self.output))

    def run(self, url: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return ballot(*self.arguments, "--url", url, *options, **variables)

    def start(self, url: str, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *self.arguments, "--url", url, *options],
            cwd=ROOT,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def answers(self) -> list[dict[str, Any]]:
        content = self.output.read_bytes()
        assert content.endswith(b"\n")
        return [json.loads(line) for line in content.split(b"\n")[:-1]]

    def ids(self) -> list[str]:
        """Return each answer's id; of an error, its code."""
        return [
            answer["result"]["id"] if "result" in answer else answer["code"]
            for answer in self.answers()
        ]

    def wait_for_lines(self, count: int, process: subprocess.Popen[bytes]) -> None:
        """Return once the output has so many lines."""
        deadline = time.monotonic() + PATIENCE
        while not self.output.exists() or self.output.read_bytes().count(b"\n") < count:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """Ten good lines."""
    return Work(tmp_path, encoded(*map(decision, range(1, 11))))


TEN = [f"d-{number}" for number in range(1, 11)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    return path


@pytest.fixture(scope="module")
def live(tiny: Path) -> Iterator[AdapterProcess]:
    with AdapterProcess(
        BALLOT_GGUF_PATH=str(tiny), BALLOT_THREADS="1", BALLOT_CONTEXT_TOKENS="1024"
    ) as running:
        yield running.wait_ready()


def undated(answers: list[dict[str, Any]]) -> str:
    """Return answers without what differs from one time to the next."""
    for answer in answers:
        answer.get("result", {}).pop("timing", None)
        answer.pop("timing", None)
        answer.pop("request_id", None)
    return json.dumps(answers)


def test_killed_halfway_and_resumed_is_as_never_killed(
    tmp_path: Path, tiny: Path, live: AdapterProcess
) -> None:
    content = mixed(DECISIONS)
    whole, killed = Work(tmp_path, content, "whole.jsonl"), Work(tmp_path, content, "killed.jsonl")
    whole.output = tmp_path / "whole-out.jsonl"
    process = killed.start(live.url)
    killed.wait_for_lines(DECISIONS // 2, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    before = killed.output.read_bytes()
    assert DECISIONS // 2 <= before.count(b"\n") < DECISIONS
    with killed.output.open("ab") as file:
        file.write(b'{"result":{"id":"d-')  # as a kill in the middle of a write leaves it

    resumed = killed.run(live.url, "--json")
    ended = ballot(
        *whole.arguments,
        "--model",
        str(tiny),
        BALLOT_THREADS="1",
        BALLOT_CONTEXT_TOKENS="1024",
    )

    assert (resumed.returncode, ended.returncode) == (1, 1), (resumed.stderr, ended.stderr)
    assert killed.output.read_bytes().startswith(before)
    answers = killed.answers()
    assert len(answers) == DECISIONS
    for number, answer in enumerate(answers, start=1):
        if number % 100:
            assert answer["result"]["id"] == f"d-{number}"
            continue
        _, code, has_id = bad_line(number)
        assert (answer["code"], answer["line"]) == (code, number)
        assert answer.get("id") == (f"d-{number}" if has_id else None)
    summary = json.loads(resumed.stdout)
    assert summary["lines"] == DECISIONS
    assert summary["lines_before"] == before.count(b"\n")
    assert summary["answered"] == summary["decisions"] == DECISIONS * 99 // 100
    errors = Counter(bad_line(number)[1] for number in range(100, DECISIONS + 1, 100))
    assert summary["errors"] == errors
    assert summary["input_tokens"] == sum(
        answer["result"]["input_tokens"] for answer in answers if "result" in answer
    )
    assert undated(answers) == undated(whole.answers())


def test_system_one_and_several_decisions_go_in_a_line_too(
    tmp_path: Path, live: AdapterProcess
) -> None:
    several = {"decisions": [decision(1)["decision"], decision(2)["decision"]]}
    question = {"type": "noul", "instructions": "Is it even?"}
    asked = {"state": "The number is 4.", "questions": {"even": question}}
    work = Work(tmp_path, encoded(several, asked, {"state": "s", "questions": {}}, decision(3)))
    ended = work.run(live.url, "--json")
    assert ended.returncode == 1, ended.stderr
    first, second, third, fourth = work.answers()
    assert [result["id"] for result in first["results"]] == ["d-1", "d-2"]
    assert 0 <= second["answers"]["even"]["noul"] <= 1
    assert (third["detail"][0]["type"], third["line"]) == ("too_few_items", 3)
    assert fourth["result"]["id"] == "d-3"
    summary = json.loads(ended.stdout)
    assert (summary["decisions"], summary["errors"]) == (4, {"too_few_items": 1})


# SageMaker's word for a container that did not answer in time: an error without its status.
GAVE_UP = Scripted.of(
    {"OriginalStatusCode": 0, "OriginalMessage": "", "Message": "timed out"},
    424,
    x_amzn_errortype="ModelError",
)
Script = Callable[[Received, list[bytes]], Scripted | None]


def first_times(count: int, scripted: Scripted) -> Script:
    """Return a script that has an answer for the first requests, and then leaves it to others."""
    left = iter(range(count))
    return lambda *_: ANSWER if next(left, None) is None else scripted


BUSY = Scripted.of(
    {"error": "busy", "code": "busy", "retryable": True, "field": None, "request_id": "id-1"}, 503
)


@pytest.mark.parametrize("scripted", [BUSY, BREAK], ids=["busy", "broken"])
def test_what_passes_is_waited_for(work: Work, scripted: Scripted) -> None:
    with LinesServer(script=first_times(2, scripted)) as server:
        ended = work.run(server.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert work.ids() == TEN


def test_a_line_whose_error_passes_is_asked_again_alone(work: Work) -> None:
    refusals = iter(["busy", "deadline_exceeded"])

    def refuse(line: bytes) -> str | None:
        return next(refusals, None) if b"d-7" in line else None

    with LinesServer(refuse=refuse) as server:
        ended = work.run(server.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert work.ids() == TEN
    again = [request.body for request in server.received if b"d-7" in request.body]
    assert again[1:] == [encoded(decision(7))] * 2


@pytest.mark.parametrize("code", ["busy", "scoring_failed", "too_many_tokens"])
def test_a_line_that_keeps_failing_keeps_its_error(work: Work, code: str) -> None:
    with LinesServer(refuse=lambda line: code if b"d-7" in line else None) as server:
        ended = work.run(server.url, "--timeout", "2")
    assert ended.returncode == 1
    assert ended.stdout.endswith(f"9 of 10 lines answered\n{ended.stdout.partition(chr(10))[2]}")
    assert f"  {code}: 1\n" in ended.stdout
    assert work.ids() == [*TEN[:6], code, *TEN[7:]]
    error = work.answers()[6]
    assert (error["line"], error["id"], error["error"]) == (7, "d-7", f"this line is {code}")
    asked = sum(b"d-7" in request.body for request in server.received)
    assert asked > 1 if code == "busy" else asked == 1


def test_a_request_that_is_too_large_is_halved_and_one_line_gets_the_error(tmp_path: Path) -> None:
    long = {"decision": {**decision(7)["decision"], "state": "x" * 2000}}
    work = Work(tmp_path, encoded(*(long if n == 7 else decision(n) for n in range(1, 11))))
    refused = {"error": "too large", "code": "body_too_large", "retryable": False, "field": None}

    def limit(request: Received, _: list[bytes]) -> Scripted | None:
        return Scripted.of(refused, 413) if len(request.body) > 1000 else ANSWER

    with LinesServer(script=limit) as server:
        ended = work.run(server.url)
    assert ended.returncode == 1, ended.stderr
    assert work.ids() == [*TEN[:6], "body_too_large", *TEN[7:]]
    error = work.answers()[6]
    assert (error["error"], error["line"], error["id"]) == ("too large", 7, "d-7")


def test_a_request_that_sagemaker_gives_up_on_is_halved(work: Work) -> None:

    def slow(_: Received, lines: list[bytes]) -> Scripted | None:
        return GAVE_UP if len(lines) > 2 else ANSWER

    with LinesServer(script=slow) as server:
        ended = ballot(*work.arguments, "-e", "decide", **aws_environment(server.url))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert work.ids() == TEN
    assert {request.path for request in server.received} == {"/endpoints/decide/invocations"}
    types = {request.headers["content-type"] for request in server.received}
    assert types == {"application/jsonlines"}


def test_a_line_alone_that_gets_no_answer_keeps_that_error(work: Work) -> None:
    def slow(_: Received, lines: list[bytes]) -> Scripted | None:
        return GAVE_UP if any(b"d-7" in line for line in lines) else ANSWER

    with LinesServer(script=slow) as server:
        environment = aws_environment(server.url)
        ended = ballot(*work.arguments, "-e", "decide", "--timeout", "1", **environment)
    assert ended.returncode == 1, ended.stderr
    assert work.ids() == [*TEN[:6], "budget_spent", *TEN[7:]]
    error = work.answers()[6]
    assert (error["line"], error["id"], error["retryable"]) == (7, "d-7", True)


def test_an_endpoint_that_falls_silent_ends_it(work: Work) -> None:
    """A line or two may be what takes too long; the third in a row is not asked to blame."""

    def silent_from_3(_: Received, lines: list[bytes]) -> Scripted | None:
        return ANSWER if all(b"d-1" in line or b"d-2" in line for line in lines) else GAVE_UP

    with LinesServer(script=silent_from_3) as server:
        environment = aws_environment(server.url)
        options = ("-e", "decide", "--timeout", "0.3", "--concurrency", "1")
        ended = ballot(*work.arguments, *options, **environment)
    assert ended.returncode == 3
    assert "lines answered: decide: no answer within 0.3 s" in ended.stderr
    assert work.ids()[:2] == ["d-1", "d-2"]
    assert work.ids()[2:] in ([], ["budget_spent"], ["budget_spent"] * 2)


def test_requests_grow_and_stay_small_enough(tmp_path: Path) -> None:
    """At most 512 lines, and a megabyte, which is what an adapter takes at least."""
    wide = [decision(n)["decision"] for n in range(1, 41)]
    lines = [{"decision": {**some, "state": "x" * 100_000}} for some in wide]
    work = Work(tmp_path, encoded(*lines, *map(decision, range(41, 3001))))
    with LinesServer() as server:
        assert work.run(server.url).returncode == 0
    assert max(len(request.body) for request in server.received) <= 1_000_000
    assert 1 < max(request.body.count(b"\n") for request in server.received) <= 512
    assert server.received[0].body.count(b"\n") == 1  # until it is known how long a line takes
    assert server.lines_asked == 3000
    assert work.ids() == [f"d-{number}" for number in range(1, 3001)]


@pytest.mark.parametrize(
    ("answer", "status", "line"),
    [
        (Scripted.of({"error": "no such route", "code": "not_found"}, 404), 1, "check the URL"),
        (
            Scripted.of({"error": "not JSON", "code": "unsupported_media_type"}, 415),
            1,
            "update the endpoint: it knows no JSON lines yet",
        ),
        (Scripted.of({"error": "no", "code": "bad_key"}, 401), 3, "check the key"),
        (BUSY, 3, "no answer within 0.3 s"),
        (Scripted(200, b"[]\n"), 1, "the answer to line 1 is not an object"),
        (Scripted(200, b"{}\n"), 1, "the answer to line 1 is neither a result nor an error"),
        (Scripted(200, b'{"line": 2}\n'), 1, "the answer to line 1 is of line 2 of the request"),
        (Scripted(200, b"{}\n{}\n"), 1, "1 lines got 2 answers"),
    ],
)
def test_an_endpoint_that_will_not_ends_it_and_nothing_is_written(
    work: Work, answer: Scripted, status: int, line: str
) -> None:
    with LinesServer(script=lambda *_: answer) as server:
        ended = work.run(server.url, "--timeout", "0.3" if status == 3 else "60")
    assert ended.returncode == status
    assert ended.stderr.startswith("ballot: 0 of 10 lines answered: ")
    assert line in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert work.output.read_bytes() == b""


def test_an_endpoint_that_goes_away_leaves_what_it_answered(work: Work) -> None:
    def until_line_5(_: Received, lines: list[bytes]) -> Scripted | None:
        return BUSY if any(b"d-5" in line for line in lines) else ANSWER

    with LinesServer(script=until_line_5) as server:
        ended = work.run(server.url, "--timeout", "0.3", "--concurrency", "1")
    assert ended.returncode == 3
    done = work.output.read_bytes().count(b"\n")
    assert 1 <= done < 5
    assert ended.stderr.startswith(f"ballot: {done} of 10 lines answered: ")
    with LinesServer() as server:
        ended = work.run(server.url)
    assert (ended.returncode, work.ids()) == (0, TEN)
    assert server.lines_asked == 10 - done
    assert f"  {done} lines were answered before\n" in ended.stdout


def failing(**codes: str) -> Callable[[bytes], str | None]:
    """Return what refuses lines by a word in them."""
    words = {word.replace("_", "-").encode(): code for word, code in codes.items()}
    return lambda line: next((code for word, code in words.items() if word in line), None)


def test_lines_whose_error_is_retryable_are_asked_again(work: Work) -> None:
    """They alone, in their places; an unfinished output is finished, too."""
    refuse = failing(d_3="scoring_failed", d_5="too_many_tokens", d_7="scoring_failed")
    with LinesServer(refuse=refuse) as server:
        ended = work.run(server.url)
        assert ended.returncode == 1
        assert "  2 may be answered later: `ballot batch run` with --again\n" in ended.stdout
        asked = server.lines_asked
        assert work.run(server.url).returncode == 1
        assert server.lines_asked == asked
    old = work.output.read_bytes().splitlines(keepends=True)
    work.output.write_bytes(b"".join(old[:8]))
    with LinesServer() as server:
        ended = work.run(server.url, "--again", "--json")
    assert ended.returncode == 1
    said = json.loads(ended.stdout)
    assert (said["errors"], said["retryable"]) == ({"too_many_tokens": 1}, 0)
    assert sorted(b"".join(request.body for request in server.received).splitlines()) == sorted(
        encoded(*map(decision, (3, 7, 9, 10))).splitlines()
    )
    assert work.ids() == [*TEN[:4], "too_many_tokens", *TEN[5:]]
    new = work.output.read_bytes().splitlines(keepends=True)
    assert [place for place in range(8) if old[place] != new[place]] == [2, 6]
    assert {path.name for path in work.output.parent.iterdir()} == {
        "in.jsonl",
        "out.jsonl",
        "out.jsonl.batch.json",
    }


def test_asking_again_keeps_what_it_got_when_the_endpoint_goes_away(work: Work) -> None:
    with LinesServer(refuse=failing(d_3="scoring_failed", d_7="scoring_failed")) as server:
        work.run(server.url)

    def until_line_7(_: Received, lines: list[bytes]) -> Scripted | None:
        return BUSY if any(b"d-7" in line for line in lines) else ANSWER

    with LinesServer(script=until_line_7) as server:
        ended = work.run(server.url, "--again", "--timeout", "0.3", "--concurrency", "1")
    assert ended.returncode == 3
    assert work.ids() == [*TEN[:6], "scoring_failed", *TEN[7:]]
    assert not list(work.output.parent.glob("*.again"))


def test_a_kill_while_asking_again_leaves_the_output_as_it_was(work: Work) -> None:
    with LinesServer(refuse=lambda _: "scoring_failed") as server:
        work.run(server.url)
    before = work.output.read_bytes()
    with LinesServer(seconds_per_line=0.2) as server:
        process = work.start(server.url, "--again", "--concurrency", "1")
        deadline = time.monotonic() + PATIENCE
        while server.lines_asked < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert work.output.read_bytes() == before
    with LinesServer() as server:
        assert work.run(server.url, "--again").returncode == 0
    assert work.ids() == TEN


def refusal(status: int) -> Scripted:
    return Scripted.of({"error": "no lines here", "code": "invalid_json"}, status)


def test_a_server_that_refuses_every_request_ends_it_early(tmp_path: Path) -> None:
    work = Work(tmp_path, encoded(*map(decision, range(1, 101))))
    with LinesServer(script=lambda *_: refusal(400)) as server:
        ended = work.run(server.url)
    assert ended.returncode == 1
    assert ended.stderr.startswith("ballot: 0 of 100 lines answered: no lines here (invalid_json)")
    assert len(server.received) < 20
    assert work.output.read_bytes() == b""


def test_first_lines_that_are_refused_themselves_keep_their_errors(tmp_path: Path) -> None:
    """Two bad ones may be bad; and of one that is too large, its size is to blame."""

    def picky(_: Received, lines: list[bytes]) -> Scripted | None:
        if any(b"too large" in line for line in lines):
            return refusal(413)
        return refusal(400) if any(b"bad" in line for line in lines) else ANSWER

    lines = [b"too large"] * 5 + [b"bad"] * 2
    work = Work(tmp_path, encoded(*lines, decision(1), b"bad"))
    with LinesServer(script=picky) as server:
        ended = work.run(server.url)
    assert ended.returncode == 1, ended.stderr
    assert work.ids() == [*["invalid_json"] * 7, "d-1", "invalid_json"]
    short = Work(tmp_path, encoded(*lines), "short.jsonl")
    short.output = tmp_path / "short-out.jsonl"
    with LinesServer(script=picky) as server:
        assert short.run(server.url).returncode == 1
    assert short.ids() == ["invalid_json"] * 7


def test_a_finished_run_asks_nothing_and_says_the_same(work: Work) -> None:
    with LinesServer() as server:
        first = work.run(server.url)
        asked = server.lines_asked
        again = work.run(server.url)
    assert server.lines_asked == asked == 10
    assert first.stdout.splitlines()[0] == again.stdout.splitlines()[0]
    assert again.returncode == 0


def test_interrupting_is_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    work = Work(tmp_path, encoded(*map(decision, range(1, 101))))
    with LinesServer(seconds_per_line=0.05) as server:
        process = work.start(server.url)
        work.wait_for_lines(1, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    done = work.output.read_bytes().count(b"\n")
    assert (process.returncode, out) == (130, b"")
    said = f"ballot: interrupted: {done} of 100 lines answered; the same command goes on\n"
    assert err.decode() == said
    with LinesServer() as server:
        assert work.run(server.url).returncode == 0
    assert work.ids() == [f"d-{number}" for number in range(1, 101)]


def test_another_input_is_refused(work: Work) -> None:
    with LinesServer() as server:
        assert work.run(server.url).returncode == 0
        kept = work.output.read_bytes()
        work.input.write_bytes(encoded(*map(decision, range(2, 12))))
        ended = work.run(server.url)
    assert ended.returncode == 2
    assert "has answers to another input: in.jsonl, SHA-256 " in ended.stderr
    assert hashlib.sha256(work.input.read_bytes()).hexdigest() in ended.stderr
    assert work.output.read_bytes() == kept


def test_another_model_is_refused(work: Work) -> None:
    def until_line_5(_: Received, lines: list[bytes]) -> Scripted | None:
        return BUSY if any(b"d-5" in line for line in lines) else ANSWER

    with LinesServer(script=until_line_5) as server:
        work.run(server.url, "--timeout", "0.3", "--concurrency", "1")
    kept = work.output.read_bytes()
    assert kept
    with LinesServer(sha256="f" * 64) as server:
        ended = work.run(server.url)
    assert ended.returncode == 1
    assert "another model answers than before: its SHA-256 was 13c16f4" in ended.stderr
    assert f"and is {'f' * 64}" in ended.stderr
    assert work.output.read_bytes() == kept


def test_the_output_of_something_else_is_left_alone(work: Work) -> None:
    work.output.write_text("precious")
    ended = work.run("http://127.0.0.1:9")
    assert ended.returncode == 2
    assert f"{work.output} is there already, and is no output of `ballot batch run`" in ended.stderr
    assert work.output.read_text() == "precious"
    ended = ballot("batch", "run", str(work.input), "-o", "out.gz", "--url", "http://x")
    assert ended.returncode == 2
    assert "out.gz would not be gzip; name a file without .gz" in ended.stderr
    ended = ballot("batch", "run", str(work.input), "-o", str(work.input), "--url", "http://x")
    assert ended.returncode == 2
    assert "INPUT and --output are the same file" in ended.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{}\n", "the answer to line 1 is neither a result nor an error"),
        (b"not JSON\n", "the answer to line 1 is not JSON"),
        (b'{"error":"e","code":"c","line":1}\n{"error":"e","code":"c","line":1}\n', "line 2 is of"),
    ],
)
def test_a_broken_output_is_told(work: Work, content: bytes, reason: str) -> None:
    with LinesServer() as server:
        work.run(server.url)
    work.output.write_bytes(content)
    ended = work.run("http://127.0.0.1:9")
    assert ended.returncode == 2
    assert f"{work.output} is broken: " in ended.stderr
    assert reason in ended.stderr


def test_an_empty_file_is_taken_as_the_output(work: Work) -> None:
    work.output.touch()
    with LinesServer() as server:
        assert work.run(server.url).returncode == 0
    assert work.ids() == TEN


def test_an_output_that_another_has_begun_is_not_bound_anew(work: Work) -> None:
    with work.output.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ended = work.run("http://127.0.0.1:9")
    assert ended.returncode == 2
    assert f"another process is writing {work.output}" in ended.stderr
    assert not work.output.with_name("out.jsonl.batch.json").exists()


def test_two_at_one_output_is_refused(work: Work) -> None:
    with LinesServer() as server:
        work.run(server.url)
    with work.output.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ended = work.run("http://127.0.0.1:9")
    assert ended.returncode == 2
    assert f"another process is writing {work.output}" in ended.stderr


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (encoded(*map(decision, range(1, 11)))[:-1], "in.jsonl"),
        (encoded(*map(decision, range(1, 11))).replace(b"\n", b"\r\n"), "in.jsonl"),
        (b"\xef\xbb\xbf" + encoded(*map(decision, range(1, 11))), "in.jsonl"),
        (gzip.compress(encoded(*map(decision, range(1, 11)))), "in.jsonl.gz"),
    ],
    ids=["no line feed at the end", "carriage returns", "byte order mark", "gzip"],
)
def test_files_as_they_come_are_read(tmp_path: Path, content: bytes, name: str) -> None:
    work = Work(tmp_path, content, name)
    with LinesServer() as server:
        ended = work.run(server.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert work.ids() == TEN


def test_an_empty_file_has_no_answers(tmp_path: Path) -> None:
    work = Work(tmp_path, b"")
    ended = work.run("http://127.0.0.1:9")
    assert (ended.returncode, work.output.read_bytes()) == (0, b"")
    assert "0 of 0 lines answered" in ended.stdout


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (b"plain", "in.jsonl.gz", "is not whole gzip: Not a gzipped file"),
        (gzip.compress(b"x" * 99)[:-9], "in.jsonl.gz", "is not whole gzip: "),
        (b"x" * (26 << 20), "in.jsonl", "line 1 of "),
    ],
)
def test_an_input_that_cannot_be_read_is_2(
    tmp_path: Path, content: bytes, name: str, reason: str
) -> None:
    work = Work(tmp_path, content, name)
    ended = work.run("http://127.0.0.1:9")
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert not work.output.exists()


def test_a_terminal_is_shown_how_far_it_is(work: Work) -> None:
    with LinesServer(seconds_per_line=0.02) as server:
        ended = ballot_in_terminal(*work.arguments, "--url", server.url)
    assert ended.returncode == 0
    assert "asking" in ended.stdout
    assert "10/10" in ended.stdout
    assert f"{work.output}: 10 of 10 lines answered" in ended.stdout.replace("\n", "")


def test_an_output_that_can_grow_no_more_is_told_and_the_work_goes_on_later(work: Work) -> None:
    """A limit on a file's size stands for a full disk: a write to it fails halfway."""
    with LinesServer() as server:
        limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", *COMMAND]
        ended = subprocess.run(
            [*limited, *work.arguments, "--url", server.url],
            cwd=ROOT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 1
        assert ended.stderr == "ballot: cannot write the output: File too large\n"
        assert work.output.stat().st_size <= 4096
        assert work.run(server.url).returncode == 0
    assert work.ids() == TEN


@pytest.mark.parametrize("path", ["/dev/full", "."])
def test_an_output_that_is_no_file_is_refused(work: Work, path: str) -> None:
    ended = ballot("batch", "run", str(work.input), "-o", path, "--url", "http://127.0.0.1:9")
    assert ended.returncode == 2
    assert f"{path} is no regular file; name another output" in ended.stderr
