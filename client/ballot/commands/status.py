"""The exit statuses of `ballot`, as docs/cli.md has them."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """What an exit status says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141
