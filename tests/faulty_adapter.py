"""Runs the adapter with a fault put into it that nothing outside could provoke.

    python faulty_adapter.py FAULT [ARGUMENT]

A script, not a module of the tests: it runs in the adapter's own process.
"""

from __future__ import annotations

import errno
import itertools
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTAINER = Path(__file__).resolve().parent.parent / "container"
FIVE_HOURS = 5 * 3600.0


class Dead(BaseException):
    """What no handler of ordinary errors catches."""


def worker_dies(trigger: str) -> None:
    """End the worker in its next forward pass once there is a file `trigger`."""
    from adapter.engine import Engine

    forward: Callable[..., Any] = Engine.forward_together

    def forward_or_die(*arguments: Any) -> Any:
        if Path(trigger).exists():
            raise Dead("a prompt could stand here")
        return forward(*arguments)

    Engine.forward_together = forward_or_die  # type: ignore[assignment, method-assign]


def worker_hangs(trigger: str) -> None:
    """Let forward passes wait, as on a GPU that hangs, for as long as there is a file `trigger`."""
    from adapter.engine import Engine

    forward: Callable[..., Any] = Engine.forward_together

    def forward_in_the_end(*arguments: Any) -> Any:
        while Path(trigger).exists():
            time.sleep(0.01)
        return forward(*arguments)

    Engine.forward_together = forward_in_the_end  # type: ignore[assignment, method-assign]


def clock_jumps() -> None:
    """Let the time of day be right, five hours late and five hours early by turns."""
    true_time = time.time
    offsets = itertools.cycle((0.0, FIVE_HOURS, -FIVE_HOURS))
    time.time = lambda: true_time() + next(offsets)


def model_stale(trigger: str) -> None:
    """Let a network file system forget the model's file once there is a file `trigger`."""
    true_fstat = os.fstat

    def fstat(fd: int) -> os.stat_result:
        if Path(trigger).exists() and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".gguf":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return true_fstat(fd)

    os.fstat = fstat


FAULTS: dict[str, Callable[..., None]] = {
    "worker-dies": worker_dies,
    "worker-hangs": worker_hangs,
    "clock-jumps": clock_jumps,
    "model-stale": model_stale,
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    sys.path.insert(0, str(CONTAINER))
    FAULTS[name](*arguments)
    sys.argv[1:] = ["serve"]
    runpy.run_module("adapter", run_name="__main__", alter_sys=True)
