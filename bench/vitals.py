"""What a process holds, as Linux shows it under /proc: memory, file descriptors, threads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Vitals:
    """Resident memory, and what else the process holds.

    `anonymous_bytes` are the part of it that no file has; `proportional_bytes` (PSS) leave to
    others what they share, so that they rise when another process on the same files ends.
    """

    resident_bytes: int
    anonymous_bytes: int
    proportional_bytes: int
    descriptors: int
    threads: int


def vitals(pid: int | str = "self") -> Vitals:
    """Return what a running process holds now."""
    folder = Path("/proc") / str(pid)
    status = (folder / "status").read_text()
    memory = (folder / "smaps_rollup").read_text()
    return Vitals(
        resident_bytes=_number("Rss", memory) * 1024,
        anonymous_bytes=_number("Anonymous", memory) * 1024,
        proportional_bytes=_number("Pss", memory) * 1024,
        descriptors=sum(1 for _ in (folder / "fd").iterdir()),
        threads=_number("Threads", status),
    )


def _number(name: str, text: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert match is not None, f"/proc has no {name}"
    return int(match[1])
