"""The long run: each target for some minutes, guided by the coverage of the code under test.

    python -m tests.fuzz --minutes 20                    every target, one after the other
    python -m tests.fuzz --minutes 20 --target gguf      one of them
    python -m tests.fuzz --replay FILE --target gguf     a finding once more, with its traceback

What was worth keeping lies under `.build/fuzz/<target>/corpus`, where the next run goes on from.
A finding ends its target's run, is told with its traceback and lies beside the corpus.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.engine import ENGINE_FOLDER
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

# A reader that takes longer for one input, or more memory, has a fault of its own.
MOST_SECONDS_AN_INPUT = 60
MOST_MEGABYTES = 1024
MOST_INPUT_BYTES = 8192
_RUNS = re.compile(r"^Done (\d+) runs in (\d+) second", re.M)
_COVERED = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")


@dataclass(frozen=True)
class Outcome:
    """How a target's run ended: its last lines where it found something."""

    line: str
    finding: str | None


def fuzz(target: Target, *, seconds: int) -> Outcome:
    """Run one target in a process of its own."""
    folder = ENGINE_FOLDER / target.name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate([*target.seeds(), *target.regressions]):
        (corpus / f"seed-{index}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    options = [
        *(f"-max_total_time={seconds}", f"-dict={words}", f"-artifact_prefix={folder}/"),
        *(f"-timeout={MOST_SECONDS_AN_INPUT}", f"-rss_limit_mb={MOST_MEGABYTES}"),
        *(f"-max_len={MOST_INPUT_BYTES}", "-len_control=20", str(corpus)),
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.engine", target.name, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return Outcome(_summary(ended.stdout), None if ended.returncode == 0 else ended.stdout)


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _summary(output: str) -> str:
    runs, covered = _RUNS.search(output), list(_COVERED.finditer(output))
    if runs is None or not covered:
        return "no figures"
    branches, features, corpus = covered[-1].groups()
    return (
        f"{int(runs[1]):,} inputs in {runs[2]} s; {branches} branches and {features} features "
        f"covered; {corpus} inputs worth keeping"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; return 1 where something was found."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description="Fuzz what reads foreign bytes")
    parser.add_argument("--minutes", type=float, default=20.0, help="for each target")
    parser.add_argument("--target", choices=TARGETS, help="this one alone")
    parser.add_argument("--replay", type=Path, help="check this file, and do nothing else")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        if options.target is None:
            parser.error("--replay needs --target")
        TARGETS[options.target].check(options.replay.read_bytes())
        return 0
    names = [options.target] if options.target else [*TARGETS]
    status = 0
    for name in names:
        outcome = fuzz(TARGETS[name], seconds=round(options.minutes * 60))
        if outcome.finding is not None:
            status = 1
            print("\n".join(outcome.finding.splitlines()[-60:]))
        print(f"{name}: {'FOUND SOMETHING: ' if outcome.finding else ''}{outcome.line}", flush=True)
    return status


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
