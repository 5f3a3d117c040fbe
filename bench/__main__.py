"""`make bench`: run the rows, print one table a model, write the JSON and the HTML report.

make bench                          every row but the soak, on the demo's and the tests' model
make bench MODEL=path/to.gguf       on another model
make bench ROWS="startup moves"     some rows; ROWS=soak runs the soak
make bench REPEAT=2                 fewer turns, for a quick look
make bench GPU_LAYERS=-1            everything offloaded (see make bench-gpu)
LLAMA_SERVER=path make bench        with llama-server as the peer (see make bench-peer)
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bench import machine, peer_side, scenarios
from bench.adapter_side import AdapterSide
from bench.bare_side import BareSide
from bench.decisions import Writer
from bench.page import page
from bench.peer_side import PeerSide
from bench.report import ModelRun, Run, table
from bench.rows import BenchError, Outcome
from bench.scenarios import Plan, Sides
from bench.soak import soak
from bench.startup import startup
from tests.adapter_process import BUILD, DEMO_MODEL, GEMMA_MODEL

OUT = BUILD / "bench"
ROWS: dict[str, Callable[[Sides, Plan], Outcome]] = {
    "startup": startup,
    "fresh-short": scenarios.fresh_short,
    "shared-long": scenarios.shared_long,
    "state-again": scenarios.state_again,
    "interleaved": scenarios.interleaved,
    "criterion-first": scenarios.criterion_first,
    "moves": scenarios.moves,
    "callers": scenarios.callers,
    "by-length": scenarios.by_length,
    "soak": soak,
}
DEFAULT_ROWS = [name for name in ROWS if name != "soak"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; return 0 whatever the rows say, 1 when one cannot be measured."""
    options = _parser().parse_args(arguments)
    # As an exception, so that the processes of the sides end with this one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False)
    try:
        run = bench(options, console)
    except (BenchError, AssertionError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped; the reports have the rows so far", file=sys.stderr)
        return 130
    console.print(f"{run.misses} rows miss their target. {options.out}/report.html has the plots.")
    return 1 if run.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, action="append", help="a GGUF; may be given again")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=DEFAULT_ROWS)
    parser.add_argument("--repeat", type=int, help="turns of each row, instead of its own number")
    parser.add_argument("--gpu-layers", type=int, default=0, help="-1 offloads all of them")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of the reports")
    return parser


def bench(options: argparse.Namespace, console: Console) -> Run:
    """Run the chosen rows on each model; print each model's table, and write what there is so far.

    Raises:
        BenchError: a side does not run.
    """
    server = _llama_server(os.environ.get("LLAMA_SERVER"))
    run = Run(
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=machine.describe_machine(),
        peer=None if server is None else peer_side.version(server),
        load_before=machine.load(),
    )
    if machine.is_busy(run.load_before, run.machine["cpus"]):
        console.print(f"Other work keeps this machine busy ({run.load_before}): trust no ratio.")
    start = time.perf_counter()
    for gguf in options.model or [path for path in (DEMO_MODEL, GEMMA_MODEL) if path.exists()]:
        for model in _measured(gguf.resolve(), server, options, console):
            if model not in run.models:
                run.models.append(model)
            run.seconds = round(time.perf_counter() - start, 1)
            run.load_after = machine.load()
            write(run, options.out)
        console.print(table(run.models[-1]))
    return run


def _measured(
    gguf: Path, server: Path | None, options: argparse.Namespace, console: Console
) -> Iterator[ModelRun]:
    """Yield the model's run after each row, the same object with more in it."""
    plan = Plan(options.repeat)
    with ExitStack() as stack:
        sides = _open_sides(gguf, server, options.gpu_layers, stack)
        model = ModelRun(gguf.name, sides.adapter.identity())
        sides.unrelated("warm-up")
        for name in options.rows:
            began = time.perf_counter()
            try:
                with console.status(f"{gguf.name}: {name}"):
                    model.add(ROWS[name](sides, plan))
                outcome = f"{time.perf_counter() - began:.0f} s"
            except BenchError as error:
                outcome = f"not measured: {error}"
                model.failures.append(f"{name} {outcome}")
            console.print(f"{gguf.name}: {name}, {outcome}", style="dim", markup=False)
            yield model


def _open_sides(gguf: Path, server: Path | None, gpu_layers: int, stack: ExitStack) -> Sides:
    if not gguf.is_file():
        raise BenchError(f"there is no model file {gguf}")
    adapter = stack.enter_context(AdapterSide(gguf, gpu_layers=gpu_layers))
    identity = adapter.identity()
    settings = {
        "threads": identity["threads"],
        "gpu_layers": gpu_layers,
        "context_tokens": identity["context_tokens"],
    }
    bare = stack.enter_context(BareSide(gguf, **settings))
    peer = None
    if server is not None:
        has_template = adapter.has_chat_template()
        peer = stack.enter_context(
            PeerSide(server, gguf, has_chat_template=has_template, **settings)
        )
    return Sides(gguf, gpu_layers, adapter, bare, peer, Writer(bare.count_tokens))


def _llama_server(path: str | None) -> Path | None:
    if not path:
        return None
    server = Path(path).expanduser()
    if not server.is_file():
        raise BenchError(f"LLAMA_SERVER names no file: {server}")
    return server


def write(run: Run, folder: Path) -> None:
    """Write `report.json` and `report.html`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(run.as_json(), indent=1) + "\n")
    (folder / "report.html").write_text(page(run))


if __name__ == "__main__":
    sys.exit(main())
