"""What setup says to whoever runs it: a line a step, and a progress line for the long one."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TextIO

_NINJA_STEP = re.compile(r"\s*\[(\d+)/(\d+)\] ")
_MAKE_STEP = re.compile(r"\s*\[ *(\d+)%\] ")
_CLEAR_LINE = "\r\x1b[2K"
# Configuring takes seconds that the first few files would multiply into a wild estimate.
_FIRST_ESTIMATE_PERCENT = 5
_GREEN, _DIM, _RESET = "\x1b[32m", "\x1b[2m", "\x1b[0m"


class SetupError(Exception):
    """A failure that the user can act on; its text is shown as it is, without a traceback."""


class Console:
    """Writes step lines to a stream.

    On a terminal, work in progress is one line that the next one replaces; elsewhere every line
    stays, so that a log of a build machine can be read from top to bottom.
    """

    def __init__(self, stream: TextIO, *, redraws: bool, colour: bool) -> None:
        self.redraws = redraws
        self._stream = stream
        self._colour = colour

    @classmethod
    def for_stream(cls, stream: TextIO, *, environ: Mapping[str, str]) -> Console:
        """Return the console that suits `stream`; NO_COLOR (no-color.org) turns colour off."""
        tty = stream.isatty()
        return cls(stream, redraws=tty, colour=tty and not environ.get("NO_COLOR"))

    def done(self, step: str, detail: str) -> None:
        """Say that a step did its work."""
        self._report("done", step, detail, colour=_GREEN)

    def skipped(self, step: str, detail: str) -> None:
        """Say that a step had nothing left to do."""
        self._report("skip", step, detail, colour=_DIM)

    def working(self, text: str) -> None:
        """Say what is going on until the next line."""
        if self.redraws:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"{_CLEAR_LINE}{f'      {text}'[:width]}")
        else:
            self._write(f"      {text}\n")

    def close(self) -> None:
        """Remove a line that was in progress, so that what follows starts on a clean one."""
        if self.redraws:
            self._write(_CLEAR_LINE)

    def _report(self, state: str, step: str, detail: str, *, colour: str) -> None:
        self.close()
        shown = f"{colour}{state}{_RESET}" if self._colour else state
        self._write(f"{shown}  {step:<24} {detail}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class BuildStep(NamedTuple):
    """How far a compilation is: `done` of `total` steps (of 100 when the tool gives per cent)."""

    done: int
    total: int


def parse_step(line: str) -> BuildStep | None:
    """Return the step that a line of build output reports, or None when it reports none.

    Understands Ninja's `[40/140] ...` and the `[ 40%] ...` of CMake's Makefile generator.
    """
    if ninja := _NINJA_STEP.match(line):
        return BuildStep(done=int(ninja[1]), total=int(ninja[2]))
    if make := _MAKE_STEP.match(line):
        return BuildStep(done=int(make[1]), total=100)
    return None


def duration(seconds: float) -> str:
    """Return seconds as `7s` or `2m05s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class BuildProgress:
    """Turns lines of build output into a progress line: redrawn, or one for every tenth."""

    def __init__(
        self, console: Console, *, what: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._what = what
        self._clock = clock
        self._started = clock()
        self._tenth = 0

    def __call__(self, line: str) -> None:
        """Read one line of build output."""
        step = parse_step(line)
        if step is None or not self._is_due(step):
            return
        self._console.working(self._describe(step))

    def _is_due(self, step: BuildStep) -> bool:
        tenth = step.done * 10 // step.total
        reached = tenth > self._tenth
        self._tenth = max(tenth, self._tenth)
        return reached or self._console.redraws

    def _describe(self, step: BuildStep) -> str:
        elapsed = self._clock() - self._started
        percent = step.done * 100 // step.total
        text = f"{self._what} {percent:3d} %  {duration(elapsed)} elapsed"
        if percent < _FIRST_ESTIMATE_PERCENT:
            return text
        return f"{text}, about {duration(elapsed * (step.total - step.done) / step.done)} left"
