"""Where the kernel tells what a container may take: its control groups, of version 1 or 2."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PROCESS_CGROUP = Path("/proc/self/cgroup")


def group_folders(root: Path, process_cgroup: Path, controller: str = "") -> list[Path]:
    """Return the folders under `root` of this process's group and of each group above it, upwards.

    `controller` is one of version 1, which has `root` for itself; version 2 has one tree for all.
    What `process_cgroup` names may not be there: a container sees its own group as the root.
    """
    try:
        lines = process_cgroup.read_text().splitlines()
    except OSError:
        return [root]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            group = root / path.lstrip("/")
            return [group, *(up for up in group.parents if up.is_relative_to(root))]
    return [root]
