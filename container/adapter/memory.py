"""Whether a start can fit into memory at all, and what it leaves for the state cache.

A kernel promises memory that it does not have, and ends the process that comes to fetch it. A start
is refused only where that is certain: for what nothing but memory or swap can hold, measured by all
the memory there could be. Files that are mapped, as the model is, or cached are no part of that:
the kernel drops them, and reads them again.
"""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from adapter.cgroups import CGROUPS, PROCESS_CGROUP, group_folders
from adapter.errors import StartupError

PROC = Path("/proc")
# What the state cache leaves for Python: requests under way, their prompts and answers.
RESERVE_BYTES = 64 << 20
# What the state cache may have although weights would then be read from the disk again.
LEAST_CACHE_BYTES = 64 << 20
# What counts as taken, and could be used: memory, and addresses, that malloc keeps for later.
_KEPT_BYTES = 64 << 20
# From the first of these on, what a context takes is linear in its tokens.
_MEASURED_TOKENS = (1024, 2048)
_NO_LIMIT = 1 << 62
_KILOBYTES = re.compile(r"^(\w+):\s+(\d+) kB$", re.ASCII | re.MULTILINE)


def bytes_left(
    cgroups: Path = CGROUPS, process_cgroup: Path = PROCESS_CGROUP, proc: Path = PROC
) -> int:
    """Return how many bytes this process could still take if it had all memory for itself.

    That is all of the machine's memory, or what its control groups allow, and all swap, less what
    this process has in them now; or else what the limit on its address space leaves.
    """
    own, machine = _sizes(proc / "self" / "status"), _sizes(proc / "meminfo")
    groups = [*_limits_v2(cgroups, process_cgroup), *_limits_v1(cgroups / "memory", process_cgroup)]
    total = min([machine.get("MemTotal", _NO_LIMIT), *groups]) + machine.get("SwapTotal", 0)
    left = total - own.get("RssAnon", 0) - own.get("VmSwap", 0)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        left = min(left, limit - own.get("VmSize", 0))
    return max(0, left)


def check_context_fits(
    tokens: int, left: int, *, token_bytes: int, measure: Callable[[int], int]
) -> None:
    """Refuse a context of `tokens` that takes more than the `left` bytes.

    `token_bytes` is more than any token can take: only where that does not fit, `measure` is asked
    what a context of some tokens really takes.

    Raises:
        StartupError: it takes more.
    """
    left += _KEPT_BYTES
    if tokens * token_bytes <= left or tokens <= _MEASURED_TOKENS[-1]:
        return
    few, more = _MEASURED_TOKENS
    taken_by_few, taken_by_more = measure(few), measure(more)
    need = taken_by_few + (taken_by_more - taken_by_few) * (tokens - few) // (more - few)
    if need > left:
        raise StartupError(
            f"a context of {tokens} tokens takes {need >> 20} MiB, and at most {left >> 20} MiB of "
            "memory are left; lower BALLOT_CONTEXT_TOKENS or add memory"
        )


def cache_bytes(wanted: int, left: int, *, mapped: int) -> int:
    """Return how many of the `wanted` bytes a cache may have where `left` are.

    The `mapped` bytes of the model are to stay in memory beside it, but for a least that it gets.
    """
    room = max(0, left - RESERVE_BYTES)
    return min(wanted, room, max(LEAST_CACHE_BYTES, room - mapped))


def _sizes(path: Path) -> dict[str, int]:
    """Return what a file of /proc tells in kB, in bytes; nothing where there is no such file."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    return {name: int(size) << 10 for name, size in _KILOBYTES.findall(text)}


def _limits_v2(root: Path, process_cgroup: Path) -> Iterator[int]:
    for folder in group_folders(root, process_cgroup):
        # Where there is no limit, it says `max`.
        with contextlib.suppress(OSError, ValueError):
            yield int((folder / "memory.max").read_text())


def _limits_v1(root: Path, process_cgroup: Path) -> Iterator[int]:
    """Yield the limit as the process's own group has it: groups above it need not count."""
    for folder in group_folders(root, process_cgroup, "memory"):
        with contextlib.suppress(OSError):
            stat = (folder / "memory.stat").read_text()
            yield from map(int, re.findall(r"^hierarchical_memory_limit (\d+)$", stat, re.M))
            return
