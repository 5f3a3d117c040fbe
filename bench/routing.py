"""`make routing`: which routing strategy of SageMaker's suits which requests, by simulation.

make routing                          measures an adapter's costs on the demo's model, and simulates
make routing MODEL=path/to.gguf       on another model
python -m bench.routing --costs FILE  with costs that were measured before
python -m bench.routing --trace FILE  replays a trace of your own (docs/routing.md)
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.__main__ import write
from bench.bare_side import BareSide
from bench.decisions import Writer
from bench.http_client import Connection
from bench.report import ModelRun, Run
from bench.routing_replay import (
    Replayed,
    Strategy,
    at_random,
    least_outstanding,
    prefix_aware,
    replay,
)
from bench.routing_trace import (
    WORKLOADS,
    Cost,
    Request,
    make_trace,
    read_lines,
    read_trace,
    record,
    write_lines,
)
from bench.rows import BenchError, Curve, Outcome, Row
from bench.stats import exactly
from tests.adapter_process import BUILD, DEMO_MODEL, AdapterProcess

OUT = BUILD / "bench" / "routing"
INSTANCES = (1, 2, 4, 8, 16)
MIDDLE, MANY = 4, 16
THRESHOLD = 4
THRESHOLDS = (1, 2, 4, 8, 16, 32)
RANDOM, LEAST, PREFIX = "random", "least outstanding", "prefix aware"
STRATEGIES: dict[str, Strategy] = {
    RANDOM: at_random,
    LEAST: least_outstanding,
    PREFIX: prefix_aware(THRESHOLD),
}


@dataclass(frozen=True)
class Case:
    """One replay: of which workload, how it was routed, and what became of it."""

    workload: str
    instances: int
    routing: str
    hit_ratio: float
    decoded_tokens: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    imbalance: float
    refused: int

    @classmethod
    def of(cls, workload: str, instances: int, routing: str, replayed: Replayed) -> Case:
        """Return the figures of a replay."""
        return cls(
            workload=workload,
            instances=instances,
            routing=routing,
            hit_ratio=replayed.hit_ratio,
            decoded_tokens=replayed.decoded_tokens,
            p50_seconds=replayed.latency(50),
            p95_seconds=replayed.latency(95),
            p99_seconds=replayed.latency(99),
            imbalance=replayed.imbalance,
            refused=replayed.refused,
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """The case as a line of the table."""
        return (
            self.workload,
            str(self.instances),
            self.routing,
            f"{self.hit_ratio:.1%}",
            f"{self.decoded_tokens:.0f}",
            *(f"{s:.2f} s" for s in (self.p50_seconds, self.p95_seconds, self.p99_seconds)),
            f"{self.imbalance:.2f}",
            str(self.refused),
        )


ABOUT = (
    "Requests to a SageMaker endpoint of several instances, simulated with the costs that an "
    "adapter had (docs/routing.md). A ratio below 1 means less with prefix-aware routing."
)
COLUMNS = (
    "workload",
    "instances",
    "routing",
    "hits",
    "tokens",
    "p50",
    "p95",
    "p99",
    "imbalance",
    "refused",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, simulate, print the table and write the reports; 1 when the costs are not there."""
    options = _parser().parse_args(arguments)
    # As an exception, so that the adapter ends with this process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, width=max(120, Console().width))
    try:
        cases = simulate(options, console)
    except (BenchError, AssertionError, OSError) as error:
        print(f"routing: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("routing: stopped", file=sys.stderr)
        return 130
    console.print(_table(cases))
    console.print(f"{options.out}/report.html has the plots.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="routing", description=(__doc__ or "").partition("\n")[0])
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--model", type=Path, default=DEMO_MODEL, help="a GGUF to measure")
    given.add_argument("--costs", type=Path, help="costs that were measured before")
    given.add_argument("--trace", type=Path, help="a trace to replay as it is")
    parser.add_argument("--threads", default="auto", help="threads that decode")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of the reports")
    return parser


def simulate(options: argparse.Namespace, console: Console) -> list[Case]:
    """Return all cases, and write the reports.

    Raises:
        BenchError: there are no costs to be had.
    """
    run = Run(
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=machine.describe_machine(),
        peer=None,
        load_before=machine.load(),
        about=ABOUT,
    )
    start = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.trace is not None:
        trace = read_trace(options.trace)
        traces: dict[str, Callable[[int], list[Request]]] = {options.trace.stem: lambda _: trace}
        model = ModelRun(options.trace.name, {"quantization": ""})
    else:
        identity, costs = _costs(options)
        traces = {name: _maker(name, costs) for name in WORKLOADS}
        model = ModelRun(identity.pop("file"), identity)
    cases = []
    for name, trace_for in traces.items():
        with console.status(f"{name}: replaying"):
            several, outcome = study(name, trace_for)
        cases += several
        model.add(outcome)
    run.models.append(model)
    run.seconds = round(time.perf_counter() - start, 1)
    run.load_after = machine.load()
    write(run, options.out)
    written = json.dumps([dataclasses.asdict(case) for case in cases], indent=1)
    (options.out / "cases.json").write_text(f"{written}\n")
    return cases


def _maker(workload: str, costs: Sequence[Cost]) -> Callable[[int], list[Request]]:
    return lambda instances: make_trace(workload, costs, instances=instances)


def _costs(options: argparse.Namespace) -> tuple[dict[str, Any], list[Cost]]:
    """Return what the model says of itself, and its costs; those measured are written."""
    if options.costs is not None:
        return {"file": options.costs.name, "quantization": ""}, read_lines(options.costs, Cost)
    gguf = options.model.resolve()
    if not gguf.is_file():
        raise BenchError(f"there is no model file {gguf}")
    with AdapterProcess(BALLOT_GGUF_PATH=str(gguf), BALLOT_THREADS=options.threads) as adapter:
        identity = adapter.wait_for_event("model_loaded")
        settings = {"threads": identity["threads"], "context_tokens": identity["context_tokens"]}
        with (
            BareSide(gguf, gpu_layers=0, **settings) as bare,
            Connection(adapter.port) as connection,
        ):
            costs = record(connection, Writer(bare.count_tokens))
    write_lines(options.out / "costs.jsonl", costs)
    return identity, costs


def study(workload: str, trace_for: Callable[[int], list[Request]]) -> tuple[list[Case], Outcome]:
    """Replay one workload in every way; `trace_for` returns its trace for so many instances."""
    by_instances = {
        name: [
            Case.of(workload, n, name, replay(trace_for(n), strategy, instances=n))
            for n in INSTANCES
        ]
        for name, strategy in STRATEGIES.items()
    }
    by_threshold = {n: _by_threshold(workload, trace_for(n), n) for n in (MIDDLE, MANY)}
    middle = trace_for(MIDDLE)
    own_order = [dataclasses.replace(one, prefix=str(at)) for at, one in enumerate(middle)]
    others = [
        Case.of(
            workload,
            MIDDLE,
            f"{PREFIX}, an id first",
            replay(own_order, STRATEGIES[PREFIX], instances=MIDDLE),
        )
    ]
    others += [
        Case.of(workload, 2 * MIDDLE, f"{name}, {when} {MIDDLE} became {2 * MIDDLE}", part)
        for name in (LEAST, PREFIX)
        for when, part in _around_growth(middle, STRATEGIES[name])
    ]
    cases = [case for several in by_instances.values() for case in several]
    cases += [case for several in by_threshold.values() for case in several] + others
    outcome = Outcome(_rows(workload, by_instances), _curves(workload, by_instances, by_threshold))
    return cases, outcome


def _by_threshold(workload: str, trace: Sequence[Request], instances: int) -> list[Case]:
    return [
        Case.of(
            workload,
            instances,
            f"{PREFIX}, threshold {threshold}",
            replay(trace, prefix_aware(threshold), instances=instances),
        )
        for threshold in THRESHOLDS
    ]


def _around_growth(trace: Sequence[Request], strategy: Strategy) -> list[tuple[str, Replayed]]:
    """Replay while the number of instances doubles in the middle; return what was just after."""
    whole = replay(trace, strategy, instances=MIDDLE, grown=2 * MIDDLE)
    return [("just after", whole.part(0.5, 0.55)), ("long after", whole.part(0.9, 1))]


def _rows(workload: str, by_instances: dict[str, list[Case]]) -> list[Row]:
    at = INSTANCES.index(MIDDLE)
    ours, theirs = by_instances[PREFIX][at], by_instances[LEAST][at]
    what = f"{workload}, {MIDDLE} instances, {PREFIX}"
    return [
        Row(
            name=workload,
            what=f"{what}: decoded tokens",
            against=LEAST,
            value=exactly(ours.decoded_tokens / theirs.decoded_tokens),
            note=f"{ours.hit_ratio:.1%} hits instead of {theirs.hit_ratio:.1%}",
        ),
        Row(
            name=workload,
            what=f"{what}: p95 latency",
            against=LEAST,
            value=exactly(ours.p95_seconds / theirs.p95_seconds),
            note=f"{ours.p95_seconds:.2f} s instead of {theirs.p95_seconds:.2f} s",
        ),
    ]


def _curves(
    workload: str, by_instances: dict[str, list[Case]], by_threshold: dict[int, list[Case]]
) -> list[Curve]:
    found: dict[str, list[tuple[float, float]]] = {
        name: [(case.instances, 100 * case.hit_ratio) for case in cases]
        for name, cases in by_instances.items()
    }
    waited: dict[str, list[tuple[float, float]]] = {
        f"{instances} instances": [
            (threshold, case.p95_seconds) for threshold, case in zip(THRESHOLDS, cases, strict=True)
        ]
        for instances, cases in by_threshold.items()
    }
    return [
        Curve(f"{workload}: states found in memory", "instances", "%", found),
        Curve(f"{workload}: p95 latency, {PREFIX}", "ConcurrencyThreshold", "s", waited),
    ]


def _table(cases: Sequence[Case]) -> Table:
    result = Table(title="Routing", title_justify="left")
    for name in COLUMNS:
        is_text = name in ("workload", "routing")
        result.add_column(name, justify="left" if is_text else "right", no_wrap=is_text)
    for case in cases:
        result.add_row(*case.cells)
    return result


if __name__ == "__main__":
    sys.exit(main())
