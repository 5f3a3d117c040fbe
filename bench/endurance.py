"""`make endurance`: half an hour at full load, and nothing that grows, differs or is left out.

make endurance                          30 minutes on the demo's model
make endurance MODEL=path/to.gguf       on another model
make endurance MINUTES=5                shorter

Every valid request is first asked alone, on an adapter of its own. Then callers ask all of them
at once of a fresh adapter, with invalid requests and hang-ups in between, and each answer is
compared with the one that was given alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from bench import machine
from bench.__main__ import write
from bench.bare_side import BareSide
from bench.endurance_callers import Caller, Seen, Solo, ask_alone, joined
from bench.endurance_mix import INVOCATIONS, SYSTEM_ONE, Mix, write_mix
from bench.http_client import Connection
from bench.report import ModelRun, Run, table
from bench.rows import BenchError, Curve, Outcome, Row, Target, at_most
from bench.stats import Spread, drift, exactly
from bench.vitals import Vitals, vitals
from tests.adapter_process import BUILD, DEMO_MODEL, AdapterProcess

OUT = BUILD / "bench" / "endurance"
MINUTES = 30.0
CALLERS = 8
STATES = 150
# Small enough to be full, and to let states go, from the first minutes on.
CACHE_MEBIBYTES = 128
SAMPLES = 360
ABOUT = (
    "Callers asked all that an adapter could do, for a while, and hung up now and then. Growth is "
    "the usual slope over the time after the warm-up (Theil and Sen), between the quartiles of "
    "the slopes."
)
# The part of the run after which memory has no more reason to grow.
WARM_UP = 0.2
_MEBIBYTE = 1 << 20
_ROUTES = (INVOCATIONS, SYSTEM_ONE, "other")
# How long the adapter may take to notice the last callers that hung up.
_SETTLE_SECONDS = 120.0


@dataclass(frozen=True)
class Counters:
    """What `/metrics` tells: requests by route and outcome, and what the worker did."""

    requests: Counter[tuple[str, str]]
    begun: float
    waiting: float

    def since(self, before: Counters) -> Counters:
        """Return what was counted since `before`."""
        return Counters(self.requests - before.requests, self.begun - before.begun, self.waiting)


@dataclass(frozen=True)
class Sample:
    """The adapter at one moment, some seconds after the callers began."""

    seconds: float
    vitals: Vitals
    waiting: float
    answered: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return 0 when every row is as it has to be, 1 when not."""
    options = _parser().parse_args(arguments)
    # As an exception, so that the adapter ends with this process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run = endure(options, Console(highlight=False))
    except (BenchError, AssertionError, OSError, HTTPException) as error:
        print(f"endurance: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("endurance: stopped", file=sys.stderr)
        return 130
    return 1 if run.misses else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="endurance", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="a GGUF")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="how long to ask")
    parser.add_argument("--callers", type=int, default=CALLERS, help="how many ask at once")
    parser.add_argument("--states", type=int, default=STATES, help="states seldom asked about")
    parser.add_argument("--threads", default="auto", help="threads that decode")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of the reports")
    return parser


def endure(options: argparse.Namespace, console: Console) -> Run:
    """Ask alone, then all at once; print the table and write the reports.

    Raises:
        BenchError: the adapter does not run, or refuses a request that it is asked alone.
    """
    gguf = options.model.resolve()
    if not gguf.is_file():
        raise BenchError(f"there is no model file {gguf}")
    run = Run(
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=machine.describe_machine(),
        peer=None,
        load_before=machine.load(),
        about=ABOUT,
    )
    start = time.perf_counter()
    identity, mix, solo = _alone(gguf, options)
    console.print(f"{gguf.name}: {len(solo)} requests asked alone", style="dim", markup=False)
    with _adapter(gguf, options) as adapter:
        watch = _Watch(adapter, options.minutes * 60)
        seen, samples, counted = watch.run(mix, solo, callers=options.callers)
    run.models.append(ModelRun(gguf.name, identity, judge(seen, samples, counted, solo)))
    run.seconds = round(time.perf_counter() - start, 1)
    run.load_after = machine.load()
    write(run, options.out)
    _write_raw(seen, samples, options.out)
    console.print(table(run.models[-1]))
    console.print(f"{run.misses} rows miss their target. {options.out}/report.html has the plots.")
    return run


def _adapter(gguf: Path, options: argparse.Namespace) -> AdapterProcess:
    return AdapterProcess(
        BALLOT_GGUF_PATH=str(gguf),
        BALLOT_THREADS=options.threads,
        BALLOT_STATE_CACHE_MB=str(CACHE_MEBIBYTES),
    )


def _alone(gguf: Path, options: argparse.Namespace) -> tuple[dict[str, Any], Mix, dict[str, Solo]]:
    """Return what the adapter says of itself, the requests, and their answers when alone."""
    with ExitStack() as stack:
        adapter = stack.enter_context(_adapter(gguf, options))
        identity = adapter.wait_for_event("model_loaded")
        with BareSide(
            gguf,
            threads=identity["threads"],
            gpu_layers=0,
            context_tokens=identity["context_tokens"],
        ) as bare:
            mix = write_mix(bare, states=options.states, context_tokens=identity["context_tokens"])
        connection = stack.enter_context(Connection(adapter.port))
        return identity, mix, ask_alone(connection, mix)


class _Watch:
    """A run at full load, and what is sampled of the adapter meanwhile."""

    def __init__(self, adapter: AdapterProcess, seconds: float) -> None:
        self._adapter = adapter.wait_ready()
        self._seconds = seconds
        self._pid = adapter.process.pid

    def run(
        self, mix: Mix, solo: dict[str, Solo], *, callers: int
    ) -> tuple[Seen, list[Sample], Counters]:
        """Return what the callers saw, the samples, and what the adapter counted."""
        with ExitStack() as stack:
            before = counters(self._adapter.port)
            over = threading.Event()
            several = [
                Caller(
                    stack.enter_context(Connection(self._adapter.port)),
                    mix,
                    solo,
                    seed=f"caller {number}",
                    callers=callers,
                )
                for number in range(callers)
            ]
            pool = stack.enter_context(ThreadPoolExecutor(callers))
            # Before the pool waits for them, whatever happens here.
            stack.callback(over.set)
            asking = [pool.submit(caller.ask_until, over.is_set) for caller in several]
            samples = self._samples(several)
            over.set()
            seen = joined(_results(asking))
            return seen, samples, _settled(self._adapter.port, before, seen.sent)

    def _samples(self, several: Sequence[Caller]) -> list[Sample]:
        """Look at the adapter for as long as the run is to take."""
        samples = []
        start = time.monotonic()
        while (seconds := time.monotonic() - start) < self._seconds:
            samples.append(self._sample(seconds, several))
            time.sleep(self._seconds / SAMPLES)
        return samples

    def _sample(self, seconds: float, several: Sequence[Caller]) -> Sample:
        answered = sum(caller.seen.answered.total() for caller in several)
        waiting = counters(self._adapter.port).waiting
        return Sample(seconds, vitals(self._pid), waiting, answered)


def _results(asking: Sequence[Future[Seen]]) -> list[Seen]:
    return [future.result() for future in asking]


def counters(port: int) -> Counters:
    """Read `/metrics`, over a connection that no server has had time to find idle and close."""
    with Connection(port) as connection:
        text = connection.ask("GET", "/metrics", b"", {}).body.decode()
    requests: Counter[tuple[str, str]] = Counter()
    begun = waiting = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "ballot_requests_total" and sample.labels["route"] in _ROUTES:
                requests[sample.labels["route"], sample.labels["outcome"]] += int(sample.value)
            elif sample.name == "ballot_queue_wait_seconds_count":
                begun = sample.value
            elif sample.name == "ballot_queue_depth":
                waiting = sample.value
    return Counters(requests, begun, waiting)


def _settled(port: int, before: Counters, sent: int) -> Counters:
    """Return what was counted once all that was sent is, or there is no more to come."""
    patience = time.monotonic() + _SETTLE_SECONDS
    counted = counters(port).since(before)
    while counted.requests.total() < sent and time.monotonic() < patience:
        time.sleep(0.1)
        counted = counters(port).since(before)
    return counted


def judge(
    seen: Seen, samples: Sequence[Sample], counted: Counters, solo: dict[str, Solo]
) -> Outcome:
    """Return the rows and the curves of a run."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in seen.kinds.most_common())
    compared = seen.answered.total() - seen.kinds["invalid"]
    rows = [
        _none(
            "answers that differ from those given alone",
            seen.count("differs"),
            f"{compared} answers to {len(solo)} requests; {kinds}",
        ),
        _none("valid requests that were refused", seen.count("refused")),
        _none("requests without an answer", seen.count("unanswered"), f"of {seen.sent}"),
        _none(
            "invalid requests that did not get their code",
            seen.count("wrong refusal"),
            f"of {seen.kinds['invalid']}",
        ),
        _none(
            "requests that /metrics counts otherwise",
            miscounted(seen, counted),
            f"{seen.left.total()} callers hung up, when the worker had begun with "
            f"{counted.begun - seen.jobs:.0f} of their requests and lines",
        ),
        Row(
            name="endurance",
            what="the shortest that the queue was seen",
            against="empty",
            value=exactly(min(sample.waiting for sample in samples), count=len(samples)),
            target=Target("at least", 1),
            unit="requests",
        ),
        *_growth(samples),
    ]
    return Outcome(rows, _curves(samples))


def miscounted(seen: Seen, counted: Counters) -> int:
    """Return by how much the adapter's counts and the callers' differ.

    Who hung up does not know whether the answer was on its way: it counts as either.
    """
    difference = 0
    for route in _ROUTES:
        theirs = {outcome: n for (path, outcome), n in counted.requests.items() if path == route}
        ours = {outcome: n for (path, outcome), n in seen.answered.items() if path == route}
        gone = theirs.pop("caller_gone", 0) + theirs.pop("ok", 0) - ours.pop("ok", 0)
        difference += abs(gone - seen.left[route])
        difference += sum(
            abs(theirs.get(code, 0) - ours.get(code, 0)) for code in theirs.keys() | ours.keys()
        )
    return difference


def _none(what: str, count: int, note: str = "") -> Row:
    return Row(
        name="endurance",
        what=what,
        against="none",
        value=exactly(count),
        target=Target("exactly", 0),
        unit="requests",
        note=note,
    )


def _growth(samples: Sequence[Sample]) -> list[Row]:
    warm = samples[int(len(samples) * WARM_UP) :]
    return [
        _grown("resident memory", _resident(warm), "% of its start", at_most(2)),
        _grown("anonymous memory", _anonymous(warm), "% of its start", at_most(2)),
        _grown("file descriptors", _descriptors(warm), "in all", at_most(1)),
        _grown("threads", _threads(warm), "in all", at_most(0)),
    ]


def _grown(what: str, line: Sequence[tuple[float, float]], unit: str, target: Target) -> Row:
    """Return by how much a line rises after the warm-up, in all or in percent of its start."""
    rise = drift(line)
    values = [value for _, value in line]
    one = values[0] / 100 if unit.startswith("%") else 1.0
    return Row(
        name="endurance",
        what=f"growth of {what} after {WARM_UP:.0%} of the time",
        against="none",
        value=Spread(rise.median / one, rise.low / one, rise.high / one, rise.count),
        target=target,
        unit=unit,
        note=f"{min(values):.5g} to {max(values):.5g}{' MiB' if one != 1 else ''}",
    )


def _curves(samples: Sequence[Sample]) -> list[Curve]:
    minutes = [sample.seconds / 60 for sample in samples]
    rates = [
        (at, (later.answered - earlier.answered) / (later.seconds - earlier.seconds))
        for at, earlier, later in zip(minutes[1:], samples, samples[1:], strict=False)
    ]
    waiting = [(at, sample.waiting) for at, sample in zip(minutes, samples, strict=True)]
    return [
        Curve(
            "Endurance: memory",
            "minutes",
            "MiB",
            {
                "resident": _in_minutes(_resident(samples)),
                "anonymous": _in_minutes(_anonymous(samples)),
                "PSS": _in_minutes(_proportional(samples)),
            },
        ),
        Curve(
            "Endurance: file descriptors and threads",
            "minutes",
            "",
            {
                "file descriptors": _in_minutes(_descriptors(samples)),
                "threads": _in_minutes(_threads(samples)),
            },
        ),
        Curve("Endurance: the queue", "minutes", "waiting", {"requests": waiting}),
        Curve("Endurance: answers", "minutes", "a second", {"answers": rates}),
    ]


def _resident(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(one.seconds, one.vitals.resident_bytes / _MEBIBYTE) for one in samples]


def _anonymous(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(one.seconds, one.vitals.anonymous_bytes / _MEBIBYTE) for one in samples]


def _proportional(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(one.seconds, one.vitals.proportional_bytes / _MEBIBYTE) for one in samples]


def _descriptors(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(one.seconds, one.vitals.descriptors) for one in samples]


def _threads(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(one.seconds, one.vitals.threads) for one in samples]


def _in_minutes(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(seconds / 60, value) for seconds, value in line]


def _write_raw(seen: Seen, samples: Sequence[Sample], folder: Path) -> None:
    """Write what no row has: every sample, and every fault with what was answered."""
    raw = {
        "samples": [dataclasses.asdict(sample) for sample in samples],
        "faults": [dataclasses.asdict(fault) for fault in seen.faults],
    }
    (folder / "endurance.json").write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
