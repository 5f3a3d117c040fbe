"""How much memory there is for what a start is about to take.

A kernel promises memory that it does not have, and ends the process that comes to fetch it. So a
start asks first, and says what does not fit.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from adapter.cgroups import CGROUPS, PROCESS_CGROUP, group_folders
from adapter.errors import StartupError

PROC = Path("/proc")
# What is left for Python: requests under way, their prompts and answers.
RESERVE_BYTES = 64 << 20
# From the first of these on, what a context takes is linear in its tokens.
_MEASURED_TOKENS = (1024, 2048)


def free_bytes(
    cgroups: Path = CGROUPS, process_cgroup: Path = PROCESS_CGROUP, proc: Path = PROC
) -> int:
    """Return how many bytes this process can still take, by the machine and by its own limits.

    What the kernel caches of files counts as free, but for those that this process has mapped:
    the model would be read from the disk again for every decode.
    """
    size, resident_files = _own(proc / "self" / "statm")
    groups = [*_groups_v2(cgroups, process_cgroup), *_groups_v1(cgroups / "memory", process_cgroup)]
    free = [bytes_ - resident_files for bytes_ in (*_machine(proc / "meminfo"), *groups)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free.append(limit - size)
    return max(0, min(free, default=1 << 62))


def check_model_fits(size: int) -> None:
    """Refuse a model of `size` bytes that memory has no room for.

    Raises:
        StartupError: it has none.
    """
    free = free_bytes()
    if size > free:
        raise StartupError(
            f"the model has {_mib(size)} MiB, and {_mib(free)} MiB of memory are free; use a "
            "smaller quantization or an instance with more memory"
        )


def check_context_fits(
    tokens: int, free: int, *, token_bytes: int, measure: Callable[[int], int]
) -> None:
    """Refuse a context of `tokens` that does not fit into `free` bytes.

    `token_bytes` is more than any token can take: only where that does not fit, `measure` is asked
    what a context of some tokens really takes.

    Raises:
        StartupError: it does not fit.
    """
    if tokens * token_bytes + RESERVE_BYTES < free or tokens <= _MEASURED_TOKENS[-1]:
        return
    few, more = _MEASURED_TOKENS
    taken_by_few, taken_by_more = measure(few), measure(more)
    need = taken_by_few + (taken_by_more - taken_by_few) * (tokens - few) // (more - few)
    if need + RESERVE_BYTES > free:
        raise StartupError(
            f"a context of {tokens} tokens takes {_mib(need)} MiB, and {_mib(free)} MiB of memory "
            "are free; lower BALLOT_CONTEXT_TOKENS or add memory"
        )


def _own(statm: Path) -> tuple[int, int]:
    """Return the bytes of this process's address space, and those of the files it has in memory."""
    try:
        size, _, shared = statm.read_text().split()[:3]
    except (OSError, ValueError):
        return 0, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return int(size) * page, int(shared) * page


def _machine(meminfo: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10


def _groups_v2(root: Path, process_cgroup: Path) -> Iterator[int]:
    for folder in group_folders(root, process_cgroup):
        with contextlib.suppress(OSError, ValueError):
            # Where there is no limit, it says `max`.
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            yield limit - used + _cached(folder, "inactive_file", "active_file")


def _groups_v1(root: Path, process_cgroup: Path) -> Iterator[int]:
    for folder in group_folders(root, process_cgroup, "memory"):
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / "memory.limit_in_bytes").read_text())
            used = int((folder / "memory.usage_in_bytes").read_text())
            yield limit - used + _cached(folder, "total_inactive_file", "total_active_file")


def _cached(folder: Path, *names: str) -> int:
    lines = [line.split() for line in (folder / "memory.stat").read_text().splitlines()]
    return sum(int(value) for name, value in lines if name in names)


def _mib(size: int) -> int:
    return size >> 20
