"""`ballot threshold`: finds how sure an answer has to be, and writes a policy that applies it."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ballot.commands.calibrate import Seed, usable_run
from ballot.commands.decide import print_json
from ballot.commands.explain import Problem, Unusable
from ballot.commands.options import AsJson
from ballot.commands.output_file import check_new, write_new
from ballot.commands.request_file import parse_json, read_text
from ballot.commands.screen import make_console, printable
from ballot.quality.policy import MEASURES, Measure
from ballot.quality.runs import Run
from ballot.quality.thresholds import (
    Chosen,
    Costs,
    ThresholdError,
    policy_of,
    threshold_for_accuracy,
    threshold_for_costs,
)

_NO_AUTHORIZATION = (
    "This is no authorization: it says how often answers like these were right, not what may be "
    "done with them."
)


def threshold(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    target_accuracy: Annotated[
        float | None,
        typer.Option("--target-accuracy", metavar="SHARE", help="Of accepted answers: 0.95."),
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option("--cost", metavar="FILE", help="JSON: right, wrong, fallback cost what."),
    ] = None,
    measure: Annotated[
        str, typer.Option("--by", metavar="MEASURE", help="confidence, or margin.")
    ] = "confidence",
    least_mass: Annotated[
        float,
        typer.Option("--least-mass", metavar="SHARE", help="Abstain below this token mass."),
    ] = 0.0,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The file to write, a new one.")
    ] = Path("ballot-policy.json"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Find how sure an answer has to be to be acted on.

    \b
    ballot threshold runs/support --target-accuracy 0.95
    ballot threshold runs/support --cost costs.json --by margin

    The smallest threshold that holds on answers which it was not chosen by. The
    file is a policy: `ballot.Policy.load(FILE).judge(result)` says accept, fallback
    or abstain. It is no authorization: it says how often answers like these were
    right, not what may be done with them.
    """
    by = _measure(measure)
    if not 0 <= least_mass <= 1:
        raise Unusable(f"--least-mass {least_mass:g} is no share", advice="give 0 to 1")
    check_new(out)
    asked = _Asked(target_accuracy, cost)
    found = usable_run(run)
    try:
        chosen = asked.choose(found, by, least_mass=least_mass, seed=seed)
    except ThresholdError as error:
        raise Problem(
            f"no policy is written: {error.message}", advice="label more decisions, or ask for less"
        ) from error
    policy = policy_of(found, chosen, asked=asked.as_json(), least_mass=least_mass)
    if as_json:
        print_json({"chosen": asdict(chosen), "policy": policy.as_json()})
    else:
        _show(chosen)
    write_new(out, json.dumps(policy.as_json(), indent=2) + "\n")
    print(f"{printable(str(out))} is written. {_NO_AUTHORIZATION}", file=sys.stderr)


class _Asked:
    """What the threshold is to achieve: an accuracy, or low costs, exactly one of the two."""

    def __init__(self, target: float | None, cost: Path | None) -> None:
        if (target is None) == (cost is None):
            raise Unusable("give one of --target-accuracy and --cost", advice="see --help")
        if target is not None and not 0 < target < 1:
            raise Unusable(
                f"--target-accuracy {target:g} can be shown by no number of answers",
                advice="give a share between 0 and 1, such as 0.95",
            )
        self._target = target
        self._costs = None if cost is None else _read_costs(cost)

    def choose(self, run: Run, measure: Measure, *, least_mass: float, seed: int) -> Chosen:
        if self._target is not None:
            return threshold_for_accuracy(
                run, measure=measure, target=self._target, least_mass=least_mass
            )
        assert self._costs is not None, "this is a bug: without a target there are costs"
        return threshold_for_costs(
            run, measure=measure, costs=self._costs, least_mass=least_mass, seed=seed
        )

    def as_json(self) -> dict[str, Any]:
        if self._costs is None:
            return {"target_accuracy": self._target}
        return {"costs": asdict(self._costs)}


def _measure(text: str) -> Measure:
    for measure in MEASURES:
        if text == measure:
            return measure
    raise Unusable(f"--by {text} is not offered", advice=f"give {' or '.join(MEASURES)}")


def _read_costs(path: Path) -> Costs:
    name = str(path)
    content = parse_json(read_text(name), name)
    fields = content if isinstance(content, dict) else {}
    known = ("right", "wrong", "fallback")
    if set(fields) != set(known) or not all(_is_number(value) for value in fields.values()):
        raise Unusable(
            f"{name} is no costs",
            advice='give an object of three numbers: {"right": 0, "wrong": 20, "fallback": 2}',
        )
    return Costs(**{key: float(fields[key]) for key in known})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _show(chosen: Chosen) -> None:
    console = make_console(sys.stdout)
    coverage = chosen.coverage
    console.print(f"accept at a {chosen.measure} of {chosen.threshold:.4f} and more")
    if chosen.accuracy is not None:
        console.print(
            f"  accuracy {chosen.accuracy:.3f}, at least {chosen.least_accuracy:.3f} "
            f"(95 %, Clopper-Pearson), of {coverage.count} accepted"
        )
    console.print(
        f"  coverage {coverage.count / coverage.total:.3f} ({coverage.low:.3f} to "
        f"{coverage.high:.3f}) of {chosen.examples} held-out answers"
    )
    if chosen.saving:
        saving = chosen.saving
        console.print(
            f"  cost {chosen.cost:.4g} a decision; accepting everything "
            f"{chosen.cost_of_accepting_all:.4g}; saved against always falling back "
            f"{saving.value:.4g} ({saving.low:.4g} to {saving.high:.4g})"
        )
