"""Shows how far a run is: a bar on a terminal, a line now and then in a pipe; on standard error."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ballot.commands.screen import make_console, printable
from ballot.errors import BallotError
from ballot.quality.evaluate import Watcher

_LINES_A_RUN = 10


@contextmanager
def watching() -> Iterator[Watcher]:
    """Give what shows a run's progress, as standard error can."""
    console = make_console(sys.stderr)
    if not console.is_terminal:
        yield _Lines(console)
        return
    with _make_progress(console) as progress:
        yield _Bar(progress)


@contextmanager
def bar(*, total: int, done: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, and nothing in a pipe; give what moves it on by so many."""
    console = make_console(sys.stderr)
    if not console.is_terminal:
        yield lambda count: None
        return
    with _make_progress(console) as progress:
        task = progress.add_task("asking", total=total, completed=done)
        yield functools.partial(progress.advance, task)


def _make_progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class _Rate(ProgressColumn):
    """How fast it goes, in whichever of the two ways gives a number above 1."""

    def render(self, task: Task) -> Text:
        return Text(_rate(task.speed))


def _rate(each_second: float | None) -> str:
    if not each_second:
        return ""
    return f"{each_second:.1f}/s" if each_second >= 1 else f"{1 / each_second:.1f} s each"


class _Bar:
    """A watcher that moves a bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, *, total: int, done: int) -> None:
        self._task = self._progress.add_task("asking", total=total, completed=done)
        if done:
            self._progress.console.print(_resumed(total, done))

    def advance(self, error: BallotError | None) -> None:
        if error is not None:
            self._progress.console.print(_failed(error))
        self._progress.advance(self._task)


class _Lines:
    """A watcher that prints a line after each tenth of what is to be asked."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock

    def begin(self, *, total: int, done: int) -> None:
        self._total, self._before, self._done = total, done, done
        self._begun = self._clock()
        if done:
            self._console.print(_resumed(total, done))

    def advance(self, error: BallotError | None) -> None:
        if error is not None:
            self._console.print(_failed(error))
        self._done += 1
        step = max(1, (self._total - self._before) // _LINES_A_RUN)
        if (self._done - self._before) % step == 0 or self._done == self._total:
            self._console.print(self._line())

    def _line(self) -> str:
        elapsed = self._clock() - self._begun
        speed = (self._done - self._before) / elapsed if elapsed > 0 else 0.0
        parts = [f"{self._done} of {self._total}", _rate(speed)]
        if speed and self._done < self._total:
            parts.append(f"{_duration((self._total - self._done) / speed)} left")
        return ", ".join(filter(None, parts))


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _resumed(total: int, done: int) -> str:
    return f"{done} of {total} were answered before"


def _failed(error: BallotError) -> str:
    return f"no answer: {printable(error.message)} ({error.code})"
