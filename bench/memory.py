"""How much memory a process holds, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident set of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert match is not None, f"/proc/{pid}/status has no VmRSS"
    return int(match[1]) * 1024
