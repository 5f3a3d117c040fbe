"""Start-up and memory, against a process that only loads the model and prefills the head."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from bench.adapter_side import AdapterSide
from bench.memory import resident_bytes
from bench.rows import ADAPTER, Outcome, Row, at_most, compare
from bench.scenarios import SHORT, Plan, Sides
from bench.stats import alternate, spread

BARE_START = "bare llama.cpp"
_MEBIBYTE = 1 << 20


def startup(sides: Sides, plan: Plan) -> Outcome:
    """From starting the process to the first 200 of `/ping`, and what it holds by then."""
    identity = sides.adapter.identity()
    head = sides.bare.segments(sides.writer.decision(SHORT, seed="startup"))[0]
    settings = [identity["threads"], sides.gpu_layers, identity["context_tokens"]]
    command = [sys.executable, "-m", "bench.bare_start", str(sides.gguf), *map(str, settings)]
    resident: list[int] = []
    needed: list[int] = []

    def adapter(_: int) -> float:
        start = time.perf_counter()
        with AdapterSide(sides.gguf, gpu_layers=sides.gpu_layers) as running:
            seconds = time.perf_counter() - start
            resident.append(resident_bytes(running.process.process.pid))
            return seconds

    def bare(_: int) -> float:
        seconds, grown_bytes = _start_bare(command, head)
        needed.append(grown_bytes)
        return seconds

    samples = alternate({ADAPTER: adapter, BARE_START: bare}, pairs=plan.times(5))
    what = "from process start to ready"
    rows = compare("startup", what, samples, {BARE_START: at_most(1.2)})
    return Outcome([*rows, _memory_row(resident, needed)])


def _start_bare(command: Sequence[str], head: Sequence[int]) -> tuple[float, int]:
    """Return the seconds until the head is prefilled, and by how much memory grew for it."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(head) + "\n")
        process.stdin.flush()
        grown: int = json.loads(process.stdout.readline())["grown_bytes"]
        seconds = time.perf_counter() - start
        process.stdin.close()
    return seconds, grown


def _memory_row(resident: Sequence[int], needed: Sequence[int]) -> Row:
    beyond = [
        (all_of_it - need) / _MEBIBYTE for all_of_it, need in zip(resident, needed, strict=True)
    ]
    return Row(
        name="startup",
        what="resident memory when ready, beyond what model and context need",
        against="bare model and context",
        value=spread(beyond),
        target=at_most(80.0),
        unit="MiB",
        note=f"{spread(resident).median / _MEBIBYTE:.0f} MiB in all",
    )
