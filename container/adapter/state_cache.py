"""Snapshots of prefilled prompts, kept across requests: least recently used first out.

An entry's key is the token ids of the prefix that it brings back, segment by segment, so that two
prompts never meet in one entry unless they run the very same decodes up to there. Entries are
bounded in number and in bytes, and nothing is ever held beyond the bound: room is made before a
snapshot is taken.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Segment: TypeAlias = tuple[int, ...]
Prefix: TypeAlias = tuple[Segment, ...]
Snapshot: TypeAlias = npt.NDArray[np.uint8]

# What a token id costs in a key: a place in a tuple, and Python's integer.
KEY_BYTES_PER_TOKEN = 36


class StateCache:
    """Snapshots by prefix. One thread uses it; any thread may read its numbers."""

    def __init__(self, *, max_bytes: int, max_entries: int) -> None:
        """Hold at most `max_entries` entries of together at most `max_bytes`, keys included."""
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self.held_bytes = 0
        # A prompt with a state, or fixed criterion, of its own was found whole, or was not.
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._entries: OrderedDict[Prefix, Snapshot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, prefix: Prefix) -> bool:
        return prefix in self._entries

    def get(self, prefix: Prefix) -> Snapshot | None:
        """Return the snapshot of `prefix`, if it is held."""
        return self._entries.get(prefix)

    def touch(self, prefix: Prefix) -> None:
        """Note that `prefix`, and with it every shorter one, is used now."""
        # The shorter ones last: a head outlives the states that were decoded behind it.
        for length in range(len(prefix), 0, -1):
            if prefix[:length] in self._entries:
                self._entries.move_to_end(prefix[:length])

    def reserve(self, prefix: Prefix, size: int) -> bool:
        """Make room for a snapshot of `size` bytes under `prefix`; False when there is none.

        Entries leave that were used longest ago, but none that `prefix` goes on from.
        """
        size += _key_bytes(prefix)
        leading = [prefix[:length] for length in range(1, len(prefix))]
        kept = [entry for entry in leading if entry in self._entries]
        if len(kept) >= self.max_entries or self._bytes_of(kept) + size > self.max_bytes:
            return False
        leaving = iter([entry for entry in self._entries if entry not in kept])
        while len(self._entries) >= self.max_entries or self.held_bytes + size > self.max_bytes:
            self.drop(next(leaving))
            self.evictions += 1
        return True

    def add(self, prefix: Prefix, snapshot: Snapshot) -> None:
        """Hold `snapshot`, for which `reserve` has made room."""
        self._entries[prefix] = snapshot
        self.held_bytes += self._size(prefix)
        self.touch(prefix)

    def drop(self, prefix: Prefix) -> None:
        """Let go of `prefix`, if it is held."""
        if prefix in self._entries:
            self.held_bytes -= self._size(prefix)
            del self._entries[prefix]

    def halve(self) -> None:
        """Hold half as much as now, and never more again: the memory for it is not there."""
        self.max_bytes = self.held_bytes // 2
        for prefix in list(self._entries):
            if self.held_bytes <= self.max_bytes:
                break
            self.drop(prefix)
            self.evictions += 1

    def outlasts(self, prefix: Prefix, others: list[Prefix]) -> bool:
        """Whether `prefix` would still be held after `others`, not held yet, as far as one can say.

        Their snapshots are taken to be as large, per token, as this one.
        """
        if prefix not in self._entries:
            return False
        per_token = self._size(prefix) / _tokens(prefix)
        more = sum(per_token * _tokens(other) for other in others)
        if self._fit(len(self._entries) + len(others), self.held_bytes + more):
            return True
        count = size = 0
        for entry in reversed(self._entries):
            count += 1
            size += self._size(entry)
            if entry == prefix:
                break
        return self._fit(count + len(others), size + more)

    def _fit(self, entries: int, size: float) -> bool:
        return entries <= self.max_entries and size <= self.max_bytes

    def _bytes_of(self, prefixes: list[Prefix]) -> int:
        return sum(self._size(prefix) for prefix in prefixes)

    def _size(self, prefix: Prefix) -> int:
        return self._entries[prefix].nbytes + _key_bytes(prefix)


def _key_bytes(prefix: Prefix) -> int:
    return KEY_BYTES_PER_TOKEN * _tokens(prefix)


def _tokens(prefix: Prefix) -> int:
    return sum(len(segment) for segment in prefix)
