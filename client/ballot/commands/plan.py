"""A run that a command makes: whom it asks, how, where the answers are kept, how it ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ballot.commands.explain import Unusable
from ballot.commands.local_model import serve
from ballot.commands.options import Target
from ballot.commands.report import show_report
from ballot.commands.screen import printable
from ballot.commands.status import Status
from ballot.commands.watch import watching
from ballot.decision import Scoring
from ballot.quality.evaluate import evaluate
from ballot.quality.examples import Data, Example
from ballot.quality.gate import Limit, judge
from ballot.quality.report import write_report
from ballot.quality.runs import Run, Settings
from ballot.quality.wording import entries_notice

RUNS = Path("runs")
_MOST_CONCURRENCY = 64

Model = Annotated[
    Path | None,
    typer.Option("--model", metavar="GGUF", help="A model file to serve here meanwhile, instead."),
]
Orders = Annotated[
    int | None, typer.Option("--orders", metavar="1|2", help="Option orders to score; 2 averages.")
]
Layout = Annotated[
    str | None,
    typer.Option("--layout", metavar="LAYOUT", help="evidence_first or criterion_first."),
]
Concurrency = Annotated[
    int,
    typer.Option("--concurrency", metavar="N", help="How many to ask at a time."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Where the run is kept; by default under runs/."),
]
Most = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Ask the first N alone.")
]
FailUnder = Annotated[
    str | None,
    typer.Option(
        "--fail-under",
        metavar="LIMITS",
        help="End with status 1 where a figure misses one: accuracy=0.9,ece=0.05",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Respondent:
    """Who is to be asked: an endpoint, a server, or a model that is served here meanwhile."""

    endpoint_name: str | None
    url: str | None
    model: Path | None
    region: str | None
    key: str | None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.endpoint_name, self.url, self.model))) != 1:
            raise Unusable("give one of --endpoint, --url and --model", advice="see --help")

    @property
    def kind(self) -> str:
        """Which of the three it is."""
        if self.model:
            return "model"
        return "endpoint" if self.endpoint_name else "url"

    @property
    def name(self) -> str:
        """What to call it; without the password that a URL may hold."""
        return self.model.name if self.model else self._target(self.url).name

    @contextmanager
    def reach(self) -> Iterator[Target]:
        """Give what connects to it, with the model served for so long if it is one."""
        if self.model is None:
            yield self._target(self.url)
            return
        print(f"loading {printable(self.name)}", file=sys.stderr, flush=True)
        with serve(self.model) as url:
            yield self._target(url)

    def _target(self, url: str | None) -> Target:
        return Target(endpoint_name=self.endpoint_name, url=url, region=self.region, key=self.key)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run asks, how, and where it is kept."""

    data: Data
    respondent: Respondent
    scoring: Scoring
    concurrency: int
    timeout_seconds: float
    folder: Path | None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_concurrency(self.concurrency)

    def run(self) -> Run:
        """Ask what is not answered yet."""
        with (
            self.respondent.reach() as target,
            target.connect(timeout_seconds=self.timeout_seconds) as client,
            watching() as watcher,
        ):
            return evaluate(
                self._examples,
                client,
                folder=self.folder or RUNS / self._name(),
                settings=self._settings(),
                watcher=watcher,
            )

    @property
    def _examples(self) -> tuple[Example, ...]:
        return self.data.examples[: self.limit]

    def _settings(self) -> Settings:
        return Settings(
            data_name=self.data.name,
            data_sha256=self.data.sha256,
            mapping_sha256=self.data.mapping_sha256,
            examples=len(self._examples),
            target_kind=self.respondent.kind,
            target=self.respondent.name,
            scoring=self.scoring,
            concurrency=self.concurrency,
        )

    def _name(self) -> str:
        """Return the same name for the same command, so that it finds what it began."""
        parts = [
            Path(self.data.name).stem,
            self.respondent.name.removesuffix(".gguf").partition("://")[2] or self.respondent.name,
            self.limit and f"first-{self.limit}",
            self.scoring.layout,
            self.scoring.orders and f"orders-{self.scoring.orders}",
            self.concurrency > 1 and f"concurrency-{self.concurrency}",
        ]
        return "--".join(re.sub(r"[^\w.-]+", "-", str(part)).strip("-.") for part in parts if part)


def check_concurrency(hands: int) -> None:
    """Check that so many can be asked at a time.

    Raises:
        Unusable: they cannot.
    """
    if not 1 <= hands <= _MOST_CONCURRENCY:
        raise Unusable(
            f"--concurrency {hands} is not offered", advice=f"give 1 to {_MOST_CONCURRENCY}"
        )


def conclude(run: Run, limits: Sequence[Limit], *, hourly_price: float | None) -> Status:
    """Report the run, say which limits it misses, and return how the command ends."""
    report = write_report(run, hourly_price=hourly_price)
    show_report(report, run.folder)
    if notice := entries_notice(report):
        print(f"ballot: {printable(notice)}", file=sys.stderr)
    missed = [verdict for verdict in judge(report, limits) if not verdict.is_kept]
    for verdict in missed:
        print(f"ballot: {printable(verdict.line)}", file=sys.stderr)
    if run.failures:
        print(f"ballot: {_count_failures(run)}", file=sys.stderr)
    return Status.FAILED if missed or run.failures else Status.OK


def _count_failures(run: Run) -> str:
    examples = "1 example" if len(run.failures) == 1 else f"{len(run.failures)} examples"
    again = sum(failure.retryable for failure in run.failures)
    advice = f"; the same command asks {again} of them again" if again else ""
    return f"{examples} got no answer{advice}"
