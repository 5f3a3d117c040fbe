"""Runs are asked once, go on after any interruption, and end as their figures say."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ballot.client import Ballot
from ballot.commands.explain import Unusable
from ballot.commands.local_model import serve
from ballot.commands.plan import conclude
from ballot.commands.status import Status
from ballot.decision import Scoring
from ballot.errors import AccessDenied, BallotError, InvalidAnswer, InvalidRequest, Unavailable
from ballot.quality.evaluate import evaluate
from ballot.quality.examples import read_data
from ballot.quality.report import write_report
from ballot.quality.runs import Run, RunError, Settings, load_run
from ballot.retry import RetryPolicy
from tests.adapter_process import DEMO_MODEL, PATIENCE, ROOT, AdapterProcess
from tests.cli_process import (
    COMMAND,
    MODEL,
    SILENCE,
    Scripted,
    ballot,
    ballot_in_terminal,
    clean_environment,
)
from tests.evaluation import SAMPLE, Decider, decide, native_line, write_examples, write_lines

REPORTS = ("report.json", "report.html")


class Watched:
    """A watcher that remembers; `until` it is interrupted, as Ctrl-C does."""

    def __init__(self, until: int | None = None) -> None:
        self.begun: tuple[int, int] | None = None
        self.errors: list[BallotError | None] = []
        self._until = until

    def begin(self, *, total: int, done: int) -> None:
        self.begun = (total, done)

    def advance(self, error: BallotError | None) -> None:
        self.errors.append(error)
        if len(self.errors) == self._until:
            raise KeyboardInterrupt


def run_over(
    data: Path,
    server: Decider,
    folder: Path,
    *,
    watched: Watched | None = None,
    concurrency: int = 1,
    scoring: Scoring | None = None,
) -> Run:
    """Evaluate in this process, with a clock by which every answer takes a quarter second."""
    ticks = itertools.cycle((0.0, 0.25))
    read = read_data(data)
    settings = Settings(
        data_name=read.name,
        data_sha256=read.sha256,
        mapping_sha256=None,
        examples=len(read.examples),
        target_kind="url",
        target="server",
        scoring=scoring or Scoring(),
        concurrency=concurrency,
    )
    with Ballot(url=server.url, retry=RetryPolicy(attempts=1)) as client:
        return evaluate(
            read.examples,
            client,
            folder=folder,
            settings=settings,
            watcher=watched or Watched(),
            clock=lambda: next(ticks),
        )


def reports(run: Run) -> dict[str, bytes]:
    write_report(run)
    return {name: (run.folder / name).read_bytes() for name in REPORTS}


def answered(folder: Path) -> list[str]:
    lines = (folder / "answers.jsonl").read_text().splitlines()
    return [json.loads(line)["id"] for line in lines]


def test_examples_are_asked_one_at_a_time_in_their_order(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 5)
    watched = Watched()

    with Decider() as server:
        run = run_over(data, server, tmp_path / "run", watched=watched)

    assert server.decided == [f"example-{index}" for index in range(5)]
    assert [body["decision"] for body in server.bodies] == [
        json.loads(line)["decision"] for line in data.read_text().splitlines()
    ]
    assert all("scoring" not in body for body in server.bodies)
    assert [row.client_seconds for row in run.rows] == [0.25] * 5
    assert watched.begun == (5, 0)
    assert watched.errors == [None] * 5


def test_the_scoring_is_asked_for(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 1)

    with Decider() as server:
        run_over(
            data, server, tmp_path / "run", scoring=Scoring(orders=2, layout="criterion_first")
        )

    assert server.bodies[0]["scoring"] == {"orders": 2, "layout": "criterion_first"}


@pytest.mark.parametrize("at", [1, 3, 5])
def test_an_interrupted_run_goes_on_and_its_report_is_the_same_to_the_byte(
    tmp_path: Path, at: int
) -> None:
    data = write_examples(tmp_path / "data.jsonl", 6)
    with Decider() as server:
        whole = run_over(data, server, tmp_path / "whole")
        server.bodies.clear()
        with pytest.raises(KeyboardInterrupt):
            run_over(data, server, tmp_path / "halves", watched=Watched(until=at))
        kept = (tmp_path / "halves" / "answers.jsonl").read_bytes()
        watched = Watched()
        halves = run_over(data, server, tmp_path / "halves", watched=watched)

    assert watched.begun is not None
    assert at <= watched.begun[1] <= at + 1
    assert (tmp_path / "halves" / "answers.jsonl").read_bytes().startswith(kept)
    assert sorted(answered(tmp_path / "halves")) == [f"example-{index}" for index in range(6)]
    # What was under way at the interruption got no answer that was kept, and is asked again.
    assert len(server.decided) <= 7
    assert reports(halves) == reports(whole)


def test_a_finished_run_is_not_asked_again(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 3)
    with Decider() as server:
        first = reports(run_over(data, server, tmp_path / "run"))
        again = reports(run_over(data, server, tmp_path / "run"))

    assert len(server.decided) == 3
    assert again == first


def test_so_many_are_asked_at_a_time(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 8)
    together = threading.Barrier(4)

    def wait(_: str) -> None:
        together.wait(PATIENCE)  # fails unless four are under way

    with Decider(wait) as server:
        run = run_over(data, server, tmp_path / "run", concurrency=4)

    assert [row.id for row in run.rows] == [f"example-{index}" for index in range(8)]
    assert sorted(server.decided) == [row.id for row in run.rows]


def fails(**answers: Scripted) -> Callable[[str], Scripted | None]:
    """Return what answers some examples otherwise; `example_1` is the id `example-1`."""
    by_id = {name.replace("_", "-"): answer for name, answer in answers.items()}
    return by_id.get


def said(code: str, status: int) -> Scripted:
    told = {"error": "told so", "code": code, "retryable": False, "field": None, "request_id": "r"}
    return Scripted.of(told, status)


def test_an_error_that_is_about_an_example_is_its_failure(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 4)
    trouble = fails(example_0=said("too_many_tokens", 413), example_2=said("scoring_failed", 500))
    with Decider(trouble) as server:
        run = run_over(data, server, tmp_path / "run")
        run_over(data, server, tmp_path / "run")

    assert [row.id for row in run.rows] == ["example-1", "example-3"]
    assert [(one.id, one.code, one.status) for one in run.failures] == [
        ("example-0", "too_many_tokens", 413),
        ("example-2", "scoring_failed", 500),
    ]
    assert len(server.decided) == 4


def test_an_example_without_an_answer_is_passed_over_and_asked_again_next_time(
    tmp_path: Path,
) -> None:
    data = write_examples(tmp_path / "data.jsonl", 4)
    with Decider(fails(example_1=said("busy", 503), example_2=said("busy", 503))) as server:
        first = run_over(data, server, tmp_path / "run")
        server.otherwise = lambda id: None
        second = run_over(data, server, tmp_path / "run")

    assert [one.id for one in first.failures] == ["example-1", "example-2"]
    assert [row.id for row in second.rows] == [f"example-{index}" for index in range(4)]
    assert second.failures == ()
    assert server.decided[4:] == ["example-1", "example-2"]


def test_a_run_goes_on_past_an_example_that_never_gets_an_answer(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 6)
    with Decider(fails(example_0=said("busy", 503))) as server:
        with pytest.raises(Unavailable):
            run_over(data, server, tmp_path / "run")
        run = run_over(data, server, tmp_path / "run")
        told = reports(run)
        again = run_over(data, server, tmp_path / "run")

    assert [row.id for row in run.rows] == [f"example-{index}" for index in range(1, 6)]
    assert [one.id for one in run.failures] == ["example-0"]
    assert server.decided[-3:] == ["example-5", "example-0", "example-0"]
    assert reports(again) == told
    assert conclude(again, (), hourly_price=None) is Status.FAILED


def test_examples_without_an_answer_once_more_do_not_stop_the_run(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 10)
    busy = {f"example_{index}": said("busy", 503) for index in range(1, 10, 2)}
    with Decider(fails(**busy)) as server:
        first = run_over(data, server, tmp_path / "run")
        second = run_over(data, server, tmp_path / "run")

    assert len(server.decided) == 15
    assert second.failures == first.failures
    assert len(second.failures) == 5


def test_where_nobody_ever_answered_the_run_stops_again(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 1)
    with Decider(lambda id: said("busy", 503)) as server:
        for _ in range(2):
            with pytest.raises(Unavailable):
                run_over(data, server, tmp_path / "run")


def test_three_without_an_answer_in_a_row_stop_the_run(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 12)
    busy = {f"example_{index}": said("busy", 503) for index in range(2, 12)}
    with Decider(fails(**busy)) as server:
        with pytest.raises(Unavailable):
            run_over(data, server, tmp_path / "run")
        assert len(server.decided) <= 6
        with pytest.raises(Unavailable):
            run_over(data, server, tmp_path / "run")
        server.otherwise = lambda id: None
        run = run_over(data, server, tmp_path / "run")

    assert len(run.rows) == 12


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (said("busy", 503), Unavailable),
        (Scripted(200, b"<html>"), InvalidAnswer),
        (said("forbidden", 403), AccessDenied),
        (said("not_found", 404), InvalidRequest),
        (
            Scripted.of(
                {"error": "no", "code": "unsupported_value", "field": "scoring.orders"}, status=400
            ),
            InvalidRequest,
        ),
    ],
)
def test_an_endpoint_that_answers_nothing_stops_the_run_at_once(
    tmp_path: Path, answer: Scripted, error: type[BallotError]
) -> None:
    data = write_examples(tmp_path / "data.jsonl", 9)
    with Decider(lambda id: answer) as server:
        with pytest.raises(error):
            run_over(data, server, tmp_path / "run")
        assert len(server.decided) <= 2
        server.otherwise = lambda id: None
        run = run_over(data, server, tmp_path / "run")

    assert len(run.rows) == 9


def test_a_model_that_changes_under_way_stops_the_run(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 4)
    newer = {**MODEL, "llama_cpp": "b99999"}

    def deployed(id: str) -> Scripted | None:
        if id < "example-2":
            return None
        return Scripted.of({"result": decide(native_line(id)["decision"], model=newer)})

    with Decider(deployed) as server, pytest.raises(RunError, match=r"model\.llama_cpp was"):
        run_over(data, server, tmp_path / "run")

    assert answered(tmp_path / "run") == ["example-0", "example-1"]


class Command:
    """`ballot evaluate` under way, for tests that end it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "evaluate", *arguments],
            env=clean_environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.process:
            self.process.kill()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; return the exit status and what standard error had."""
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, told


class Stalling:
    """Lets the first examples through, and leaves every later one without an answer."""

    def __init__(self, after: int) -> None:
        self._left, self.reached = after, threading.Event()

    def __call__(self, _: str) -> Scripted | None:
        if self._left:
            self._left -= 1
            return None
        self.reached.set()
        return SILENCE


def same_seconds(folder: Path) -> Path:
    """Give every answer the same time, which no two runs share; the rest must be the same."""
    answers = folder / "answers.jsonl"
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    answers.write_text(
        "".join(f"{json.dumps({**line, 'client_seconds': 1.0})}\n" for line in lines)
    )
    return folder


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
@pytest.mark.parametrize("concurrency", ["1", "3"])
def test_a_run_that_was_killed_or_interrupted_goes_on(
    tmp_path: Path, number: signal.Signals, status: int, concurrency: str
) -> None:
    data = write_examples(tmp_path / "data.jsonl", 12)
    with Decider() as server:

        def arguments(name: str) -> list[str]:
            folder = str(tmp_path / name)
            asked = ["--url", server.url, "--concurrency", concurrency]
            return [str(data), *asked, "--out", folder, "--timeout", str(PATIENCE)]

        assert ballot("evaluate", *arguments("whole")).returncode == 0
        server.bodies.clear()
        server.otherwise = stalling = Stalling(after=5)
        with Command(*arguments("halves")) as command:
            assert stalling.reached.wait(PATIENCE)
            while (tmp_path / "halves" / "answers.jsonl").read_bytes().count(b"\n") < 5:
                assert command.process.poll() is None
            ended, told = command.end(number)
        kept = (tmp_path / "halves" / "answers.jsonl").read_bytes()
        first = server.decided
        server.otherwise = lambda id: None
        server.bodies.clear()
        resumed = ballot("evaluate", *arguments("halves"))

    assert ended == status
    assert "Traceback" not in told
    assert resumed.returncode == 0
    assert "5 of 12 were answered before" in resumed.stderr
    assert len(kept.splitlines()) == 5
    assert len(set(first)) == len(first) <= 5 + int(concurrency)
    assert sorted(server.decided) == sorted(
        {f"example-{index}" for index in range(12)}
        - {json.loads(x)["id"] for x in kept.splitlines()}
    )
    assert (tmp_path / "halves" / "answers.jsonl").read_bytes().startswith(kept)
    halves, whole = (load_run(same_seconds(tmp_path / name)) for name in ("halves", "whole"))
    assert reports(halves) == reports(whole)


def test_the_command_writes_the_run_where_the_same_command_finds_it(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "colours.jsonl", 3)
    with Decider() as server:
        arguments = (str(data), "--url", server.url, "--limit", "2", "--orders", "2")
        first, second = (
            subprocess.run(
                [*COMMAND, "evaluate", *arguments],
                env=clean_environment(),
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            for _ in range(2)
        )
        port = server.url.rpartition(":")[2]

    assert (first.returncode, second.returncode) == (0, 0)
    assert len(server.decided) == 2
    folder = tmp_path / "runs" / f"colours--127.0.0.1-{port}--first-2--orders-2"
    assert sorted(path.name for path in folder.iterdir()) == [
        "answers.jsonl",
        "manifest.json",
        "report.html",
        "report.json",
    ]
    assert first.stdout == second.stdout
    assert "report.html" in first.stdout
    assert "2 of 2 were answered before" in second.stderr


def test_in_a_pipe_progress_is_lines(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 20)
    with Decider() as server:
        ended = ballot("evaluate", str(data), "--url", server.url, "--out", str(tmp_path / "run"))

    lines = ended.stderr.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"{n} of 20" for n in range(2, 21, 2)]
    assert all(re.search(r", [\d.]+(/s| s each), \d:\d\d:\d\d left$", line) for line in lines[:-1])


def test_on_a_terminal_there_is_a_bar_with_rate_and_remaining_time(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 30)
    with Decider() as server:
        ended = ballot_in_terminal(
            "evaluate", str(data), "--url", server.url, "--out", str(tmp_path / "run"), columns=100
        )

    assert ended.returncode == 0
    assert "asking" in ended.stdout
    assert "0/30" in ended.stdout
    assert "left" in ended.stdout


def write_half_right(folder: Path) -> Path:
    """Write examples of which the server, which always says red, gets two of four right."""
    labels = ["red", "red", "green", "blue"]
    lines = [native_line(f"e-{place}", label) for place, label in enumerate(labels)]
    return write_lines(folder / "data.jsonl", *lines)


@pytest.mark.parametrize(
    ("limits", "status", "told"),
    [
        ("accuracy=0.5", 0, ""),
        ("accuracy=0.6", 1, "ballot: accuracy is 0.5, wanted at least 0.6"),
        ("ece=0.99,brier=0.1", 1, "ballot: brier is"),
        ("accuracy=0.9,speed=3", 2, "'speed' is no figure to limit"),
    ],
)
def test_a_limit_that_is_missed_is_the_exit_status(
    tmp_path: Path, limits: str, status: int, told: str
) -> None:
    data = write_half_right(tmp_path)
    with Decider() as server:
        arguments = (str(data), "--url", server.url, "--out", str(tmp_path / "run"))
        ended = ballot("evaluate", *arguments, "--fail-under", limits)

    assert ended.returncode == status
    assert told in ended.stderr
    assert len(server.decided) == (0 if status == 2 else 4)


def test_failures_are_told_and_are_the_exit_status(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 3)
    with Decider(fails(example_1=said("too_many_tokens", 413))) as server:
        ended = ballot("evaluate", str(data), "--url", server.url, "--out", str(tmp_path / "run"))

    assert ended.returncode == 1
    assert "no answer: told so (too_many_tokens)" in ended.stderr
    assert "ballot: 1 example got no answer" in ended.stderr
    assert "33.3 %" not in ended.stdout.splitlines()[0]
    [failure] = json.loads((tmp_path / "run" / "report.json").read_text())["unanswered"]
    assert failure["code"] == "too_many_tokens"


def question_line(id: str) -> dict[str, Any]:
    question = {"type": "noul", "instructions": "Is money asked back?"}
    return {"id": id, "state": "s", "question": question, "labels": ["no", "yes"], "expected": "no"}


@pytest.mark.parametrize(
    ("lines", "calibrated", "is_told"),
    [
        ([question_line("q"), native_line("n", "red")], True, True),
        ([question_line("q"), native_line("n", "red")], False, False),
        ([native_line("n", "red")], True, False),
    ],
)
def test_entries_of_a_calibration_that_questions_do_not_get_are_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: list[Any],
    calibrated: bool,
    is_told: bool,
) -> None:
    data = write_lines(tmp_path / "data.jsonl", *lines)
    named = {"sha256": "c" * 64, "temperature": 1.5, "position_prior": False}
    with Decider() as server:
        server.otherwise = lambda id: Scripted.of(
            {
                "result": decide(
                    server.bodies[-1]["decision"], calibration=named if calibrated else None
                )
            }
        )
        run = run_over(data, server, tmp_path / "run")

    conclude(run, (), hourly_price=None)

    told = "The calibration's entries for noul were not applied: examples are asked as native"
    assert capsys.readouterr().err.count(f"ballot: {told}") == is_told
    page = html.unescape((tmp_path / "run" / "report.html").read_text())
    assert page.count(told) == is_told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give one of --endpoint, --url and --model"),
        (["--url", "http://127.0.0.1:9", "--endpoint", "e"], "give one of"),
        (["--url", "http://127.0.0.1:9", "--concurrency", "0"], "--concurrency 0"),
        (["--url", "http://127.0.0.1:9", "--orders", "3"], "--orders 3"),
        (["--url", "http://127.0.0.1:9", "--layout", "x"], "--layout x"),
        (["--url", "http://127.0.0.1:9", "--hourly-price", "-1"], "--hourly-price"),
        (["--model", "nowhere.gguf"], "there is no file nowhere.gguf"),
    ],
)
def test_wrong_usage_asks_nothing(tmp_path: Path, arguments: list[str], told: str) -> None:
    data = write_examples(tmp_path / "data.jsonl", 1)

    ended = ballot("evaluate", str(data), "--out", str(tmp_path / "run"), *arguments)

    assert ended.returncode == 2
    assert told in ended.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_of_other_data_is_not_continued(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 2)
    with Decider() as server:
        arguments = ("--url", server.url, "--out", str(tmp_path / "run"))
        ballot("evaluate", str(data), *arguments)
        write_examples(data, 3)
        ended = ballot("evaluate", str(data), *arguments)

    assert ended.returncode == 2
    assert "data_sha256 was" in ended.stderr
    assert "examples was 2 and is 3" in ended.stderr
    assert len(server.decided) == 2


def test_a_sample_is_decided_by_a_live_adapter(tmp_path: Path, adapter: AdapterProcess) -> None:
    out = tmp_path / "run"
    ended = ballot("evaluate", str(SAMPLE), "--url", adapter.url, "--out", str(out))

    assert ended.returncode == 0, ended.stderr
    run = load_run(out)
    assert len(run.rows) == 12
    assert run.manifest.served is not None
    assert run.manifest.served.model.file == DEMO_MODEL.name


def test_a_model_is_served_for_the_time_of_the_run(tmp_path: Path, adapter: AdapterProcess) -> None:
    """It answers just as the adapter that runs already."""
    for name, asked in (("model", ["--model", str(DEMO_MODEL)]), ("url", ["--url", adapter.url])):
        out = ("--limit", "2", "--out", str(tmp_path / name))
        ended = ballot("evaluate", str(SAMPLE), *asked, *out)
        assert ended.returncode == 0, ended.stderr

    served, running = (load_run(tmp_path / name) for name in ("model", "url"))
    assert [row.option_logits for row in served.rows] == [row.option_logits for row in running.rows]
    assert (served.manifest.settings.target_kind, served.manifest.settings.target) == (
        "model",
        DEMO_MODEL.name,
    )


def test_a_model_that_does_not_load_is_told_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF?")

    ended = ballot("evaluate", str(SAMPLE), "--model", str(broken), "--out", str(tmp_path / "run"))

    assert ended.returncode == 1
    assert "the adapter did not come up: " in ended.stderr
    assert "broken.gguf" in ended.stderr


def test_without_the_adapter_a_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unusable) as caught, serve(DEMO_MODEL, container=tmp_path):
        pass

    assert "--url" in caught.value.advice


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_a_killed_command_takes_its_adapter_with_it(tmp_path: Path) -> None:
    arguments = (str(SAMPLE), "--model", str(DEMO_MODEL), "--out", str(tmp_path / "run"))
    with Command(*arguments) as command:
        while not (tmp_path / "run" / "answers.jsonl").exists():
            assert command.process.poll() is None
        pid = command.process.pid
        [adapter] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

        command.end(signal.SIGKILL)

    for _ in range(int(PATIENCE * 100)):
        if not is_running(adapter):
            return
        threading.Event().wait(0.01)
    os.kill(adapter, signal.SIGKILL)
    raise AssertionError("the adapter outlives the command")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_wrong_answer_of_anything_else_is_told(tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl", 1)
    other: dict[str, Any] = decide(native_line("another")["decision"])
    with Decider(lambda id: Scripted.of({"result": other})) as server:
        ended = ballot("evaluate", str(data), "--url", server.url, "--out", str(tmp_path / "run"))

    assert ended.returncode == 1
    assert "the result is of another decision than 'example-0'" in ended.stderr
