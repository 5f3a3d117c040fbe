"""What memory is left: by the machine, by control groups of both versions, by the process."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from adapter.errors import StartupError
from adapter.llama import mapped_bytes
from adapter.memory import bytes_left, cache_bytes, check_context_fits
from adapter.state_cache import StateCache

MIB = 1 << 20
GIB = 1 << 30
# A machine of 16 GiB without swap, on which next to nothing is free or available. This process has
# a GiB of its own, and as much of files: a model, in its cache or on a tmpfs.
MACHINE = {
    "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable: 2 kB\n"
    "Cached: 15728640 kB\nShmem: 8388608 kB\nMlocked: 8388608 kB\nSwapTotal: 0 kB\n"
    "HugePages_Total: 3\n",
    "proc/self/status": "Name:\tpython 1 kB\nVmSize:\t 5242880 kB\nVmRSS:\t 2097152 kB\n"
    "RssAnon:\t 1048576 kB\nRssFile:\t 524288 kB\nRssShmem:\t 524288 kB\nVmSwap:\t 0 kB\n",
    "proc/self/cgroup": "4:cpu,memory:/pods/a\n0::/pods/a\n",
}
SWAPPED = {
    "proc/meminfo": "MemTotal: 16777216 kB\nSwapTotal: 4194304 kB\nSwapFree: 0 kB\n",
    "proc/self/status": "RssAnon:\t 1048576 kB\nVmSwap:\t 2097152 kB\n",
}


def left(folder: Path, files: dict[str, str]) -> int:
    for name, text in {**MACHINE, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    proc = folder / "proc"
    return bytes_left(folder / "groups", proc / "self" / "cgroup", proc)


def v1_stat(limit: int) -> str:
    return f"cache 9\nrss 8\nhierarchical_memory_limit {limit}\nhierarchical_memsw_limit 7\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 15 * GIB, id="the machine alone, full of caches and of a tmpfs"),
        pytest.param({"groups/memory.max": "max\n"}, 15 * GIB, id="a group without a limit"),
        pytest.param(
            # All of it used, and none of that ours: whose cache it is, nobody can tell.
            {
                "groups/pods/a/memory.max": f"{4 * GIB}\n",
                "groups/pods/a/memory.current": f"{4 * GIB}\n",
                "groups/pods/a/memory.stat": "inactive_file 0\nactive_file 0\n",
            },
            3 * GIB,
            id="version 2, its cache charged elsewhere",
        ),
        pytest.param(
            {"groups/pods/memory.max": f"{3 * GIB}\n", "groups/pods/a/memory.max": "max\n"},
            2 * GIB,
            id="version 2, the group above",
        ),
        pytest.param(
            {"groups/pods/b/memory.max": f"{2 * GIB}\n"}, 15 * GIB, id="version 2, the group beside"
        ),
        pytest.param(
            {"groups/memory/pods/a/memory.stat": v1_stat(3 * GIB)}, 2 * GIB, id="version 1"
        ),
        pytest.param(
            # As a container sees it that is told the path of its group on the machine.
            {"groups/memory/memory.stat": v1_stat(2 * GIB)},
            GIB,
            id="version 1, its own group as the root",
        ),
        pytest.param(
            # Without `memory.use_hierarchy`, only the group's own limit holds.
            {
                "groups/memory/pods/memory.stat": v1_stat(GIB),
                "groups/memory/pods/a/memory.stat": v1_stat(5 * GIB),
            },
            4 * GIB,
            id="version 1, a group above that does not count",
        ),
        pytest.param(
            {"groups/memory/memory.stat": v1_stat(9223372036854771712)},
            15 * GIB,
            id="version 1 without a limit",
        ),
        pytest.param(SWAPPED, 17 * GIB, id="swap"),
        pytest.param(
            {**SWAPPED, "groups/pods/a/memory.max": f"{4 * GIB}\n"},
            5 * GIB,
            id="swap, which a group's limit does not count",
        ),
        pytest.param({"groups/memory.max": f"{GIB // 2}\n"}, 0, id="nothing"),
        pytest.param({"groups/memory.max": "lots\n"}, 15 * GIB, id="nonsense"),
    ],
)
def test_what_is_left_is_the_total_less_what_only_memory_can_hold(
    files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    assert left(tmp_path, files) == expected


def test_a_limit_on_the_address_space_counts_what_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_AS: (6 * GIB, -1)}.__getitem__)
    assert left(tmp_path, {}) == GIB


def test_where_nothing_is_told_nothing_is_refused(tmp_path: Path) -> None:
    assert bytes_left(tmp_path, tmp_path / "cgroup", tmp_path) > 1 << 60


def test_only_memory_that_no_file_can_give_back_counts_as_taken(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.touch()
    os.truncate(path, 200 * MIB)
    at_first = bytes_left()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert not any(mapped[start] for start in range(0, len(mapped), 4096))
        with_the_file = bytes_left()
    block = np.ones(200 * MIB, np.uint8)
    with_the_block = bytes_left()

    assert block.all()
    assert abs(with_the_file - at_first) < 50 * MIB
    assert abs(at_first - with_the_block - block.nbytes) < 50 * MIB


def linear(tokens: int) -> int:
    """A context of 10 MiB and 1 KiB a token."""
    return 10 * MIB + 1024 * tokens


def test_what_a_context_takes_is_extrapolated_from_two_that_are_measured() -> None:
    # It takes 107 MiB, of which malloc may have kept 64.
    need = linear(100_000) - 64 * MIB
    check_context_fits(100_000, need, token_bytes=1 << 20, measure=linear)
    with pytest.raises(StartupError, match=r"takes 107 MiB, and at most 107 MiB of memory are "):
        check_context_fits(100_000, need - 1, token_bytes=1 << 20, measure=linear)


def test_nothing_is_measured_where_there_is_plenty() -> None:
    def measure(tokens: int) -> int:
        raise AssertionError(tokens)

    check_context_fits(4096, 8 * GIB, token_bytes=1 << 20, measure=measure)


@pytest.mark.parametrize(
    ("left", "mapped", "expected"),
    [
        (8 * GIB, 4 * GIB, 512 * MIB),
        # 64 MiB stay for Python, and the model's file in memory.
        (4 * GIB + 200 * MIB, 4 * GIB, 136 * MIB),
        # There is a least, as long as there is memory for it.
        (4 * GIB, 4 * GIB, 64 * MIB),
        (GIB, 4 * GIB, 64 * MIB),
        (100 * MIB, 0, 36 * MIB),
        (50 * MIB, 0, 0),
        (-GIB, 4 * GIB, 0),
    ],
)
def test_the_state_cache_leaves_the_weights_in_memory(
    left: int, mapped: int, expected: int
) -> None:
    assert cache_bytes(512 * MIB, left, mapped=mapped) == expected


def test_a_cache_that_is_small_anyway_stays_so() -> None:
    assert cache_bytes(MIB, 4 * GIB, mapped=4 * GIB) == MIB


@pytest.mark.parametrize(
    ("lines", "mebibytes"),
    [
        # As llama.cpp logs them: one file, one whose weights were repacked, one on a GPU.
        (["load_tensors:   CPU_Mapped model buffer size =    92.50 MiB"], 92.5),
        (
            [
                "load_tensors:   CPU_Mapped model buffer size =   400.00 MiB",
                "load_tensors:   CPU_Mapped model buffer size =   100.00 MiB",
                "load_tensors:   CPU_REPACK model buffer size =   250.50 MiB",
            ],
            249.5,
        ),
        (
            [
                "load_tensors:   CPU_Mapped model buffer size =   137.00 MiB",
                "load_tensors:        CUDA0 model buffer size =  4000.00 MiB",
            ],
            137,
        ),
        (["print_info: file size   = 92.10 MiB (5.74 BPW)"], 0),
    ],
)
def test_repacked_weights_are_not_read_out_of_the_file(lines: list[str], mebibytes: float) -> None:
    assert mapped_bytes(lines) == mebibytes * MIB


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
