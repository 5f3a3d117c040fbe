"""Finds and ends the processes that belong to an emulator, whatever their parents are.

Every process that the emulator starts, and so every one that those start, has a variable with the
emulator's marker in its environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARKER_VARIABLE = "EMULATED_BY"


def marked(marker: str) -> dict[int, str]:
    """Return the process ids and command lines of the processes with `marker`, this one apart.

    `marker` is compared with whole `NAME=value` entries of each process's environment.
    """
    wanted = marker.encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if command:  # a process that has ended but was not waited for has none
                    found[int(folder.name)] = command
    return found


def end(marker: str, *, patience: float = 5.0) -> None:
    """End all processes with `marker`: SIGTERM, then SIGKILL after `patience` seconds."""
    deadline = time.monotonic() + patience
    _signal(marked(marker), signal.SIGTERM)
    while marked(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(marker)


def kill(marker: str) -> None:
    """Kill all processes with `marker`, and those that they start meanwhile."""
    while found := marked(marker):
        _signal(found, signal.SIGKILL)
        time.sleep(0.01)


def _signal(processes: dict[int, str], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
