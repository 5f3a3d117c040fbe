"""How many threads can really decode here: not what `os.cpu_count()` says inside a container."""

from __future__ import annotations

import math
import os
from pathlib import Path

from adapter.cgroups import CGROUPS, PROCESS_CGROUP, group_folders

SYSFS_CPUS = Path("/sys/devices/system/cpu")


def default_threads() -> int:
    """Return the threads to decode with: physical cores within the affinity and the CPU quota."""
    cpus = os.sched_getaffinity(0)
    threads = physical_cores(cpus, SYSFS_CPUS)
    quota = cpu_quota(CGROUPS, PROCESS_CGROUP)
    if quota is not None:
        threads = min(threads, math.ceil(quota))
    return max(1, threads)


def physical_cores(cpus: set[int], sysfs: Path) -> int:
    """Count the cores behind `cpus`: hyper-threads share one, and do not help a prefill."""
    siblings = set()
    for cpu in cpus:
        listing = sysfs / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            siblings.add(listing.read_text().strip())
        except OSError:
            siblings.add(str(cpu))
    return len(siblings)


def cpu_quota(cgroups: Path, process_cgroup: Path) -> float | None:
    """Return the tightest CPU quota, in CPUs, of this process's control groups, or None.

    Reads version 2 (`cpu.max` of the group and of each group above it) and version 1
    (`cpu.cfs_quota_us` over `cpu.cfs_period_us`).
    """
    quotas = [*_quotas_v2(cgroups, process_cgroup), *_quotas_v1(cgroups / "cpu")]
    return min(quotas, default=None)


def _quotas_v2(cgroups: Path, process_cgroup: Path) -> list[float]:
    folders = group_folders(cgroups, process_cgroup)
    return [quota for folder in folders if (quota := _cpu_max(folder / "cpu.max")) is not None]


def _cpu_max(path: Path) -> float | None:
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quotas_v1(folder: Path) -> list[float]:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return []
    return [quota / period] if quota > 0 and period > 0 else []
