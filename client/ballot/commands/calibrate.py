"""`ballot calibrate`: fits temperatures on a run, and writes them down if they are worth it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ballot.commands.decide import print_json
from ballot.commands.explain import Problem, Unusable
from ballot.commands.options import AsJson
from ballot.commands.output_file import check_new, write_new
from ballot.commands.screen import make_console, printable
from ballot.quality.calibration import Calibration, Slice, calibrate_one_order
from ballot.quality.calibration import calibrate as fit
from ballot.quality.priors import PriorFit
from ballot.quality.resampling import Change
from ballot.quality.runs import Run, load_run

Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help="The seed of the intervals' resampling.")
]
_INDENT = "  "


def calibrate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The file to write, a new one.")
    ] = Path("ballot-calibration.json"),
    one_order: Annotated[
        bool,
        typer.Option("--one-order", help="From a run of two orders, for requests of one."),
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Make the probabilities of a run mean what they say.

    \b
    ballot calibrate runs/support --out support-calibration.json
    ballot calibrate runs/two-orders --one-order

    The file is for BALLOT_CALIBRATION, or an endpoint's `calibration` in cdk.json,
    and for the very model, prompt version, layout and orders of the run. It is
    written only if answers that took no part in the fit are shown to get better;
    else the exit status is 1. docs/quality.md says what is needed, and why.

    With --one-order it also has what the model favours each place in a list by, where
    taking that off is shown to let fewer decisions flip and no fewer be right.
    """
    check_new(out)
    found = _fit(usable_run(run), one_order=one_order, seed=seed)
    if as_json:
        print_json(_as_json(found))
    else:
        _show(make_console(sys.stdout), found)
    if not found.is_worth_it:
        raise Problem(
            "no calibration is written: nothing is shown to make the answers better",
            advice="label more decisions, or leave the probabilities as they are",
        )
    write_new(out, found.file_text())
    print(f"{printable(str(out))} is written", file=sys.stderr)


def _fit(run: Run, *, one_order: bool, seed: int) -> Calibration:
    if not one_order:
        return fit(run, seed=seed)
    if any(len(row.orders) != 2 for row in run.rows):
        raise Unusable(
            "--one-order needs a run of two orders", advice="make one: ballot evaluate --orders 2"
        )
    return calibrate_one_order(run, seed=seed)


def usable_run(folder: Path) -> Run:
    """Return a run that something can be learned from.

    Raises:
        Unusable: nothing was answered, or with a prompt that this version does not know.
        RunError: there is no finished run.
    """
    run = load_run(folder)
    served = run.manifest.served
    if not run.rows or served is None:
        raise Unusable(f"{folder} has no answers", advice="look at its failures, and run it again")
    if served.layout is None:
        raise Unusable(
            f"the prompt version {served.prompt_version} is not known here", advice="update ballot"
        )
    return run


def _as_json(found: Calibration) -> dict[str, Any]:
    return {
        "priors": [asdict(item) for item in found.priors],
        "slices": [asdict(item) for item in found.slices],
        "out_of_fold": {"nll": asdict(found.nll), "ece": asdict(found.ece)},
        "calibration": json.loads(found.file_text()) if found.is_worth_it else None,
    }


def _show(console: Console, found: Calibration) -> None:
    for prior in found.priors:
        _show_prior(console, prior)
    for item in found.slices:
        _show_slice(console, item)
    console.print(Text("all answers, out of fold", style="bold"))
    console.print(f"{_INDENT}NLL {_changed(found.nll)}")
    console.print(f"{_INDENT}ECE {_changed(found.ece)} (10 equal-width bins)")


_PRIOR_VERDICTS = {
    "kept": "kept",
    "no_gain": "not kept: fewer flips are not shown",
    "less_accurate": "not kept: fewer answers would be right",
    "too_few": "not kept: too few examples",
}


def _show_prior(console: Console, item: PriorFit) -> None:
    title = f"places of {item.options} options, {item.examples} examples"
    console.print(Text.assemble((title, "bold"), f": {_PRIOR_VERDICTS[item.verdict]}"))
    if item.sensitivity and item.accuracy:
        before, after = item.accuracy
        console.print(f"{_INDENT}log prior {' '.join(f'{place:+.3f}' for place in item.log_prior)}")
        console.print(f"{_INDENT}flips {_changed(item.sensitivity)}")
        console.print(f"{_INDENT}accuracy of both orders {before:.4f} -> {after:.4f}")


def _show_slice(console: Console, item: Slice) -> None:
    fewest, most = item.options
    counts = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    verdict = "kept" if item.verdict == "kept" else f"not kept: {item.reason}"
    title = f"{printable(item.kind)}, {counts} options, {item.examples} examples"
    console.print(Text.assemble((title, "bold"), f": {verdict}"))
    if item.temperature and item.nll:
        value = item.temperature
        console.print(
            f"{_INDENT}temperature {value.value:.3f} ({value.low:.3f} to {value.high:.3f}), "
            f"NLL {_changed(item.nll)}"
        )


def _changed(change: Change) -> str:
    gain = change.gain
    return (
        f"{change.before:.4f} -> {change.after:.4f}, "
        f"lower by {gain.value:.4f} ({gain.low:.4f} to {gain.high:.4f})"
    )
