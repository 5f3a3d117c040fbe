"""`ballot compare`: runs side by side, and where they differ."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ballot.commands.decide import print_json
from ballot.commands.explain import Unusable
from ballot.commands.options import AsJson
from ballot.commands.render_comparison import show_comparison
from ballot.commands.screen import make_console
from ballot.quality.compare import Comparison
from ballot.quality.compare import compare as compare_runs
from ballot.quality.report import report_json
from ballot.quality.runs import load_run

_DEFAULT_TOP = 20


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="The folders of two or more runs.")
    ],
    top: Annotated[
        int, typer.Option("--top", metavar="N", help="How many differing decisions to show.")
    ] = _DEFAULT_TOP,
    show_all: Annotated[bool, typer.Option("--all", help="Show every differing decision.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs with the first of them.

    \b
    ballot compare runs/cpu runs/gpu runs/two-orders

    Every other run is held against the first on the examples that both have, with
    McNemar's exact test. Then come the decisions that they answer differently,
    those first whose right option's probability differs most.
    """
    if top < 0:
        raise Unusable(f"--top {top} is no number of decisions", advice="give 0 or more")
    comparison = compare_runs({name: load_run(run) for name, run in _named(runs).items()})
    if as_json:
        print_json(_as_json(comparison))
    else:
        shown = None if show_all else top
        show_comparison(make_console(sys.stdout), comparison, most_differences=shown)


def _named(folders: list[Path]) -> dict[str, Path]:
    """Return the folders by their names, or by their paths where names are the same."""
    if len(folders) < 2:
        raise Unusable("one run is nothing to compare", advice="give two or more")
    names = Counter(folder.resolve().name for folder in folders)
    named: dict[str, Path] = {}
    for folder in folders:
        name = folder.resolve().name
        key = name if names[name] == 1 else str(folder)
        if key in named:
            raise Unusable(f"{key} is given twice", advice="give each run once")
        named[key] = folder
    return named


def _as_json(comparison: Comparison) -> dict[str, Any]:
    reports = [json.loads(report_json(report)) for report in comparison.reports]
    return {**asdict(comparison), "reports": reports}
