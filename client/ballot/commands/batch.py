"""`ballot batch`: many requests in a file, and as many answers in another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ballot.batch.answers import Answer
from ballot.batch.asking import Asker
from ballot.batch.lines import Line, Source, look_at
from ballot.batch.record import Output, open_output
from ballot.batch.running import run as run_lines
from ballot.commands.batch_jobs import fetch, jobs, stop, submit, wait
from ballot.commands.batch_options import Input, OutputFile, check_output_name
from ballot.commands.batch_summary import Summary
from ballot.commands.explain import Unusable
from ballot.commands.options import (
    DEFAULT_TIMEOUT,
    AsJson,
    EndpointName,
    Key,
    Region,
    Url,
    retry_policy,
)
from ballot.commands.plan import Concurrency, Model, Respondent, check_concurrency
from ballot.commands.status import Status
from ballot.commands.watch import bar
from ballot.errors import BallotError
from ballot.retry import RetryPolicy

_IN_FLIGHT = 4

Again = Annotated[
    bool, typer.Option("--again", help="First ask lines again whose error is retryable.")
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", help="The time for all tries of a request."),
]

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def batch(context: typer.Context) -> None:
    """Answer a file of requests: here, or by batch transform.

    \b
    ballot batch run requests.jsonl -o answers.jsonl -e ballot-dev-decision
    ballot batch submit requests.jsonl -e ballot-dev-decision
    ballot batch wait JOB && ballot batch fetch JOB -o answers.jsonl

    Every line of the input is a request as /invocations takes it. The output has
    a line for each, in order: the answer, or an error with the line's number and id.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(Status.USAGE)


@app.command()
def run(
    source: Input,
    output: OutputFile,
    endpoint: EndpointName = None,
    url: Url = None,
    model: Model = None,
    concurrency: Concurrency = _IN_FLIGHT,
    again: Again = False,
    as_json: AsJson = False,
    timeout: Timeout = DEFAULT_TIMEOUT,
    region: Region = None,
    key: Key = None,
) -> Status:
    """Answer a file of requests, a few at a time.

    \b
    ballot batch run requests.jsonl -o answers.jsonl -e ballot-dev-decision
    ballot batch run requests.jsonl -o answers.jsonl --url http://127.0.0.1:8080
    ballot batch run requests.jsonl.gz -o answers.jsonl --model model.gguf

    After an interruption of any kind the same command goes on where it was. Exit
    status 1: some lines got an error, and the output says which. With --again those
    are asked again whose error is retryable.

    Needs sagemaker:InvokeEndpoint with --endpoint.
    """
    respondent = Respondent(endpoint_name=endpoint, url=url, model=model, region=region, key=key)
    check_concurrency(concurrency)
    policy = retry_policy(timeout)
    looked_at = _look_at(source, output)
    work = _Work(respondent=respondent, policy=policy, hands=concurrency)
    begun = time.monotonic()
    if again and output.exists():
        _ask_again(work, looked_at, output)
    with open_output(output, looked_at) as kept, _telling_how_far(kept, looked_at):
        if kept.lines < looked_at.lines:
            left = looked_at.read(after=kept.lines)
            work.do(left, kept.keep, total=looked_at.lines, done=kept.lines)
    seconds = time.monotonic() - begun
    summary = Summary(output=output, before=kept.before, now=kept.tally, seconds=seconds)
    return summary.show(as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Who is asked, and how."""

    respondent: Respondent
    policy: RetryPolicy
    hands: int

    def do(
        self,
        lines: Iterator[Line],
        keep: Callable[[Sequence[Answer]], None],
        *,
        total: int,
        done: int,
    ) -> None:
        """Have lines answered, and show how many of the `total` are."""
        with (
            self.respondent.reach() as target,
            target.connect_lines() as transport,
            bar(total=total, done=done) as advance,
        ):

            def keep_and_show(answers: Sequence[Answer]) -> None:
                keep(answers)
                advance(len(answers))

            run_lines(lines, Asker(transport, self.policy), hands=self.hands, keep=keep_and_show)


def _ask_again(work: _Work, source: Source, output: Path) -> None:
    """Ask the lines again whose error is retryable."""
    with open_output(output, source) as kept, _telling_how_far(kept, source):
        if kept.before.retryable:
            with kept.renew() as renewal:
                lines = renewal.lines(source)
                work.do(lines, renewal.keep, total=kept.before.retryable, done=0)


def _look_at(path: Path, output: Path) -> Source:
    check_output_name(output)
    if path.exists() and path.resolve() == output.resolve():
        raise Unusable("INPUT and --output are the same file", advice="name another output")
    return look_at(path)


@contextmanager
def _telling_how_far(kept: Output, source: Source) -> Iterator[None]:
    """Say how far the work has come when it ends early."""
    try:
        yield
    except BallotError as error:
        error.message = f"{_far(kept, source)}: {error.message}"
        raise
    except KeyboardInterrupt:
        print(
            f"ballot: interrupted: {_far(kept, source)}; the same command goes on",
            file=sys.stderr,
        )
        raise typer.Exit(Status.INTERRUPTED) from None


def _far(kept: Output, source: Source) -> str:
    return f"{kept.lines} of {source.lines} lines answered"


for _command in (submit, wait, fetch, stop):
    app.command()(_command)
app.command("list")(jobs)
