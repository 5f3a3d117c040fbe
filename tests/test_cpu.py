"""How many threads can decode: cores within the affinity and the quota of the control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapter import cpu
from adapter.cpu import cpu_quota, default_threads, physical_cores

# Linux on a machine of 4 cores with 2 hyper-threads each numbers them so.
FOUR_CORES = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
# And some machines so.
NEIGHBOURS = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def make_sysfs(folder: Path, siblings: dict[int, str]) -> Path:
    for number, listing in siblings.items():
        write(folder / f"cpu{number}" / "topology" / "thread_siblings_list", listing)
    return folder


@pytest.mark.parametrize(
    ("siblings", "affinity", "cores"),
    [
        (FOUR_CORES, {0, 1, 2, 3, 4, 5, 6, 7}, 4),
        (FOUR_CORES, {0, 4}, 1),
        (FOUR_CORES, {1, 2, 6}, 2),
        (NEIGHBOURS, {0, 1, 2, 3}, 2),
        ({}, {0, 1, 2}, 3),
        ({0: "0", 1: "1"}, {0, 1}, 2),
        # A container that shows the topology of some CPUs only.
        ({0: "0,4"}, {0, 4, 5}, 3),
    ],
)
def test_hyper_threads_count_once(
    siblings: dict[int, str], affinity: set[int], cores: int, tmp_path: Path
) -> None:
    assert physical_cores(affinity, make_sysfs(tmp_path, siblings)) == cores


@pytest.mark.parametrize(
    ("files", "process", "quota"),
    [
        # Version 2, seen from inside a container.
        ({"cpu.max": "200000 100000"}, "0::/", 2.0),
        ({"cpu.max": "50000 100000"}, "0::/", 0.5),
        ({"cpu.max": "max 100000"}, "0::/", None),
        # Version 2, nested: a group has what the tightest group above it leaves.
        (
            {"pods/cpu.max": "150000 100000", "pods/a/cpu.max": "max 100000"},
            "0::/pods/a",
            1.5,
        ),
        (
            {"pods/cpu.max": "400000 100000", "pods/a/cpu.max": "300000 100000"},
            "0::/pods/a",
            3.0,
        ),
        (
            {"pods/cpu.max": "400000 100000", "pods/b/cpu.max": "100000 100000"},
            "0::/pods/a",
            4.0,
        ),
        # Version 1.
        (
            {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"},
            "4:cpu,cpuacct:/docker/a",
            2.5,
        ),
        (
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            "4:cpu,cpuacct:/docker/a",
            None,
        ),
        # Both, as on systems that are half-way.
        (
            {
                "cpu/cpu.cfs_quota_us": "300000",
                "cpu/cpu.cfs_period_us": "100000",
                "pods/cpu.max": "200000 100000",
            },
            "4:cpu,cpuacct:/a\n0::/pods",
            2.0,
        ),
        # None, and files that are not what they should be.
        ({}, "0::/", None),
        ({}, None, None),
        ({"cpu.max": "100000 100000"}, None, 1.0),
        ({"cpu.max": "many"}, "0::/", None),
        ({"cpu/cpu.cfs_quota_us": "100000"}, "4:cpu:/", None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "0"}, "4:cpu:/", None),
    ],
)
def test_the_tightest_quota_counts(
    files: dict[str, str], process: str | None, quota: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        write(tmp_path / "cgroup" / name, text)
    process_cgroup = tmp_path / "self"
    if process is not None:
        write(process_cgroup, process)
    assert cpu_quota(tmp_path / "cgroup", process_cgroup) == quota


@pytest.mark.parametrize(
    ("affinity", "cpu_max", "threads"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, None, 4),
        ({0, 1, 2, 3, 4, 5, 6, 7}, "max 100000", 4),
        ({0, 1, 2, 3, 4, 5, 6, 7}, "1600000 100000", 4),
        ({0, 1, 2, 3, 4, 5, 6, 7}, "200000 100000", 2),
        ({0, 1, 2, 3, 4, 5, 6, 7}, "250000 100000", 3),
        ({0, 1, 2, 3, 4, 5, 6, 7}, "10000 100000", 1),
        ({0, 4}, "400000 100000", 1),
        ({0, 1, 2}, None, 3),
    ],
)
def test_threads_are_cores_within_the_quota(
    affinity: set[int],
    cpu_max: str | None,
    threads: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path / "self", "0::/")
    if cpu_max is not None:
        write(tmp_path / "cgroup" / "cpu.max", cpu_max)
    monkeypatch.setattr(cpu, "SYSFS_CPUS", make_sysfs(tmp_path / "cpu", FOUR_CORES))
    monkeypatch.setattr(cpu, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cpu, "PROCESS_CGROUP", tmp_path / "self")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    assert default_threads() == threads
