"""What can be fuzzed: bytes from outside, and a check that judges what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Target:
    """One reader of foreign bytes.

    `check` raises on what must not be: an error that no document names, or an accepted input that
    another implementation or the reader's own promises contradict. `seeds` are inputs to start
    from, `words` what is worth inserting, and `regressions` inputs that were once a finding.
    """

    name: str
    check: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    words: tuple[bytes, ...]
    regressions: tuple[bytes, ...] = ()
