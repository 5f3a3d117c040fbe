"""What has become of an input, in a few lines or as JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ballot.batch.answers import Tally
from ballot.commands.decide import print_json
from ballot.commands.screen import make_console, printable
from ballot.commands.status import Status


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The lines of an output: those answered before, and those of now, in so many seconds."""

    output: Path
    now: Tally
    before: Tally = field(default_factory=Tally)
    seconds: float | None = None

    def show(self, *, as_json: bool) -> Status:
        """Print it, and return how the command ends."""
        if as_json:
            print_json(self.as_json())
        else:
            self._print(make_console(sys.stdout))
        return Status.FAILED if self._all.errors else Status.OK

    def as_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        counted = self._all
        return {
            "output": str(self.output),
            "lines": counted.lines,
            "answered": counted.lines - counted.errors.total(),
            "errors": dict(counted.errors.most_common()),
            "retryable": counted.retryable,
            "decisions": counted.decisions,
            "input_tokens": counted.input_tokens,
            "cached_tokens": counted.cached_tokens,
            "lines_before": self.before.lines,
            "seconds": self.seconds,
            "decisions_per_second": self._decisions_per_second,
        }

    @property
    def _all(self) -> Tally:
        return self.before + self.now

    @property
    def _decisions_per_second(self) -> float | None:
        return self.now.decisions / self.seconds if self.seconds and self.now.decisions else None

    def _print(self, console: Console) -> None:
        counted = self._all
        answered = counted.lines - counted.errors.total()
        console.print(
            f"{printable(str(self.output))}: {answered} of {counted.lines} lines answered"
        )
        parts = [
            f"{counted.decisions} decisions",
            f"{counted.input_tokens} tokens ({counted.cached_tokens} cached)",
        ]
        if self._decisions_per_second:
            parts.append(f"{self._decisions_per_second:.1f} decisions/s")
        console.print(f"  {', '.join(parts)}")
        if self.before.lines and self.now.lines:
            console.print(f"  {self.before.lines} lines were answered before")
        for code, count in counted.errors.most_common():
            console.print(f"  {printable(code)}: {count}")
        if counted.retryable:
            console.print(
                f"  {counted.retryable} may be answered later: `ballot batch run` with --again"
            )
