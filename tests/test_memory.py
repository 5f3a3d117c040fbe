"""How much memory is free: by the machine, by control groups of both versions, by the process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from adapter.errors import StartupError
from adapter.memory import RESERVE_BYTES, check_context_fits, free_bytes
from adapter.state_cache import StateCache

MIB = 1 << 20
GIB = 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")
# 8 GiB are available; this process has a GiB of files in memory.
MACHINE = {
    "proc/meminfo": "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n",
    "proc/self/statm": f"{3 * GIB // PAGE} {2 * GIB // PAGE} {GIB // PAGE} 1 0 1 0\n",
    "proc/self/cgroup": "0::/pods/a\n",
}
V2 = {
    "groups/memory.stat": "anon 5\ninactive_file 0\nactive_file 0\n",
    "groups/memory.max": "max\n",
    "groups/memory.current": f"{9 * GIB}\n",
}


def free(folder: Path, files: dict[str, str]) -> int:
    for name, text in {**MACHINE, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    proc = folder / "proc"
    return free_bytes(folder / "groups", proc / "self" / "cgroup", proc)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 7 * GIB, id="the machine alone"),
        pytest.param(V2, 7 * GIB, id="a group without a limit"),
        pytest.param(
            # 4 GiB less 3 used, of which 2 are files that could go; one of them is ours.
            {
                "groups/pods/a/memory.max": f"{4 * GIB}\n",
                "groups/pods/a/memory.current": f"{3 * GIB}\n",
                "groups/pods/a/memory.stat": f"inactive_file {GIB}\nactive_file {GIB}\n",
            },
            2 * GIB,
            id="version 2",
        ),
        pytest.param(
            {
                "groups/pods/memory.max": f"{3 * GIB}\n",
                "groups/pods/memory.current": f"{GIB}\n",
                "groups/pods/memory.stat": f"inactive_file 0\nactive_file {512 * MIB}\n",
            },
            3 * GIB - GIB + 512 * MIB - GIB,
            id="the group above",
        ),
        pytest.param(
            {
                "groups/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
                "groups/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
                "groups/memory/memory.stat": (
                    "inactive_file 1\nactive_file 2\n"
                    f"total_inactive_file {GIB}\ntotal_active_file {GIB}\n"
                ),
            },
            GIB,
            id="version 1",
        ),
        pytest.param(
            {
                "groups/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
                "groups/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
                "groups/memory/memory.stat": "total_inactive_file 0\ntotal_active_file 0\n",
            },
            0,
            id="nothing",
        ),
        pytest.param(
            {"groups/memory.max": "lots\n", "groups/memory.current": "?\n"}, 7 * GIB, id="nonsense"
        ),
    ],
)
def test_free_is_the_least_that_anybody_leaves(
    files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    assert free(tmp_path, files) == expected


def test_where_nothing_is_told_nothing_is_refused(tmp_path: Path) -> None:
    assert free_bytes(tmp_path, tmp_path / "cgroup", tmp_path) > 1 << 60


def linear(tokens: int) -> int:
    """A context of 10 MiB and 1 KiB a token."""
    return 10 * MIB + 1024 * tokens


def test_what_a_context_takes_is_extrapolated_from_two_that_are_measured() -> None:
    need = linear(100_000) + RESERVE_BYTES
    check_context_fits(100_000, need, token_bytes=1 << 20, measure=linear)
    with pytest.raises(StartupError, match=r"^a context of 100000 tokens takes 107 MiB, and 171 "):
        check_context_fits(100_000, need - 1, token_bytes=1 << 20, measure=linear)


def test_nothing_is_measured_where_there_is_plenty() -> None:
    def measure(tokens: int) -> int:
        raise AssertionError(tokens)

    check_context_fits(4096, 8 * GIB, token_bytes=1 << 20, measure=measure)


def test_a_halved_cache_lets_the_oldest_go_and_takes_no_more_than_half() -> None:
    cache = StateCache(max_bytes=GIB, max_entries=100)
    prefixes = [((number,),) for number in range(4)]
    for prefix in prefixes:
        snapshot = np.zeros(1000, np.uint8)
        assert cache.reserve(prefix, snapshot.nbytes)
        cache.add(prefix, snapshot)
    held = cache.held_bytes
    cache.halve()

    assert [prefix in cache for prefix in prefixes] == [False, False, True, True]
    assert cache.held_bytes == held // 2 == cache.max_bytes
    assert cache.reserve(((9,),), 1000)
    assert not cache.reserve(((9,),), 3000)
