"""Decodes prompts so that the same prompt gives the same bits, and no token that memory holds.

A prompt's segments are fixed by the prompt alone. The end of every segment but the last is a mark:
a place that later prompts may start from. The context still holds the marks of the last prompt,
and a cache holds snapshots of marks across prompts; a cold prompt runs the very same decodes,
from the very same memory, as one that finds its marks, and so gets the very same logits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from adapter.errors import NotFinite, ScoringError
from adapter.lanes import Lanes
from adapter.logs import log
from adapter.state_cache import Prefix, Segment, Snapshot, StateCache
from adapter.tokens import Encoded

Logits: TypeAlias = npt.NDArray[np.float32]

# Prefill is compute-bound from about 64 tokens on, and 512 was the fastest size measured.
BATCH_TOKENS = 512
ONE_LANE = Lanes()


class Memory(Protocol):
    """The native context that an engine runs on; `adapter.llama.Context` is one."""

    def decode(self, tokens: tuple[int, ...], *, position: int, want_logits: bool) -> None: ...

    def logits(self) -> Logits: ...

    def decode_lanes(self, tails: Sequence[tuple[int, ...]], *, position: int) -> list[Logits]: ...

    def truncate(self, position: int) -> bool: ...

    def clear(self, *, wipe: bool) -> None: ...

    def snapshot_size(self) -> int: ...

    def snapshot(self) -> Snapshot: ...

    def restore(self, snapshot: Snapshot) -> None: ...


class Cancelled(Exception):
    """Nobody waits for this decision any more."""


@dataclass(frozen=True)
class Forward:
    """One forward pass: float32 logits of shape (vocabulary,), and what it cost."""

    logits: Logits
    decoded_tokens: int
    cached_tokens: int
    seconds: float


class Cuts(Enum):
    """Behind which marks the context can be cut off without a trace."""

    ANY = "any"
    LAST = "last"
    NONE = "none"


@dataclass(frozen=True)
class Reuse:
    """A way to bring a context back to a mark.

    `restores`: snapshots taken at marks bring the context back. `canonical`: a cold prompt, too,
    goes on from its own snapshot, taken and restored at each mark. A snapshot leaves out what the
    sliding `window` of some layers, in tokens, no longer sees; a restored context is then laid out
    otherwise than one that was only decoded, and the layout moves bits.
    """

    name: str
    cuts: Cuts
    restores: bool = False
    canonical: bool = False
    window: int = 0


TAIL_REMOVAL_AND_SNAPSHOTS = Reuse("tail removal and snapshots", Cuts.ANY, restores=True)
SNAPSHOTS = Reuse("snapshots", Cuts.NONE, restores=True)
CANONICAL_SNAPSHOTS = Reuse("canonical snapshots", Cuts.LAST, restores=True, canonical=True)
TAIL_REMOVAL = Reuse("tail removal", Cuts.ANY)
NO_REUSE = Reuse("none", Cuts.NONE)


def reuse_candidates(*, is_recurrent: bool, window: int) -> tuple[Reuse, ...]:
    """Return the ways to try, best first, for a model's memory; the last one is always right.

    A running state cannot be cut. Behind a sliding window, canonical snapshots give a cold prompt
    and a cached one the same layout by construction, whatever the length of the state.
    """
    canonical = replace(CANONICAL_SNAPSHOTS, window=window)
    if is_recurrent:
        return (replace(canonical, cuts=Cuts.NONE) if window else SNAPSHOTS, NO_REUSE)
    return (canonical if window else TAIL_REMOVAL_AND_SNAPSHOTS, TAIL_REMOVAL, NO_REUSE)


class Engine:
    """Runs forward passes on one context, each from the longest prefix that memory holds."""

    def __init__(
        self, memory: Memory, reuse: Reuse, cache: StateCache, lanes: Lanes = ONE_LANE
    ) -> None:
        self._memory = memory
        self.lanes = lanes
        self.reuse = reuse
        self.cache = cache
        # The segments whose ends are marks in the context, and whether anything is behind them.
        self._marked: list[Segment] = []
        self._at_mark = True

    def forward(self, encoded: Encoded, is_cancelled: Callable[[], bool]) -> Forward:
        """Return the logits after the last token of `encoded`.

        Raises:
            Cancelled: `is_cancelled` answered True between two decodes.
            ScoringError: llama.cpp failed, or gave logits that are not finite. Nothing of this
                prompt is kept.
        """
        (forward,) = self.forward_together([encoded], is_cancelled)
        return forward

    def forward_together(
        self, several: Sequence[Encoded], is_cancelled: Callable[[], bool]
    ) -> list[Forward]:
        """Return the logits after the last token of each of `several`.

        They differ in their last segment alone. The last segments of more than one are merged into
        one decode, which is faster, and moves the logits: what stands beside a prompt then counts.

        Raises:
            Cancelled, ScoringError: as `forward`, for all of them.
        """
        try:
            return self._forward_together(several, is_cancelled)
        except NotFinite:
            # A prompt that was given up before its logits showed it may have left this behind.
            # What fails from a memory that was wiped is at fault itself.
            return self._forward_together(several, is_cancelled)

    def _forward_together(
        self, several: Sequence[Encoded], is_cancelled: Callable[[], bool]
    ) -> list[Forward]:
        start = time.perf_counter()
        prefix = several[0].segments[:-1]
        try:
            found = self._recall(prefix)
            self._prefill(prefix, found, is_cancelled)
            logits = self._last_logits([encoded.segments[-1] for encoded in several], is_cancelled)
        except Cancelled:
            raise
        except BaseException:
            self._distrust(prefix)
            raise
        seconds = (time.perf_counter() - start) / len(several)
        # What one of them had to decode of the prefix, the others found in memory.
        cached = [_length(prefix[:found])] + [_length(prefix)] * (len(several) - 1)
        return [
            Forward(
                logits=one,
                decoded_tokens=encoded.input_tokens - reused,
                cached_tokens=reused,
                seconds=seconds,
            )
            for one, encoded, reused in zip(logits, several, cached, strict=True)
        ]

    def cached_tokens(self, encoded: Encoded) -> int:
        """Return how many leading tokens of `encoded` a forward pass would find in memory now."""
        prefix = encoded.segments[:-1]
        shared = _shared(self._marked, prefix)
        for length in range(len(prefix), 0, -1):
            if length <= shared and self._can_cut(length):
                return _length(prefix[:length])
            if self.reuse.restores and prefix[:length] in self.cache:
                return _length(prefix[:length])
        return 0

    def at_stake(self, encoded: Encoded, others: Sequence[Encoded]) -> int:
        """Return how many tokens of `encoded` are in memory, but not after scoring `others`."""
        prefix = encoded.segments[:-1]
        if len(prefix) < 2 or self.cached_tokens(encoded) < _length(prefix):
            return 0
        pushing = [other.segments[:-1] for other in others if len(other.segments) > 2]
        if self.cache.outlasts(prefix, pushing):
            return 0
        new = {other for other in pushing if other not in self.cache} - {prefix}
        if self.cache.outlasts(prefix, list(new)):
            return 0
        return _length(prefix[1:])

    def start_empty(self, *, wipe: bool = False) -> None:
        """Forget what the context holds, and `wipe` it; what the cache holds stays."""
        self._marked = []
        self._at_mark = True
        self._memory.clear(wipe=wipe)

    def _distrust(self, prefix: Prefix) -> None:
        """Forget the context, and the snapshots that the prompt that failed may have come from."""
        for length in range(1, len(prefix) + 1):
            self.cache.drop(prefix[:length])
        self.start_empty(wipe=True)

    def _recall(self, prefix: Prefix) -> int:
        """Bring the context to the longest part of `prefix` in memory; return its segments."""
        self.cache.touch(prefix)
        found = self._bring_back(prefix)
        if len(prefix) > 1:
            self.cache.hits += found == len(prefix)
            self.cache.misses += found < len(prefix)
        return found

    def _bring_back(self, prefix: Prefix) -> int:
        shared = _shared(self._marked, prefix)
        for length in range(len(prefix), 0, -1):
            if length <= shared and self._cut(length):
                return length
            snapshot = self.cache.get(prefix[:length]) if self.reuse.restores else None
            if snapshot is not None:
                self._memory.restore(snapshot)
                self._marked = list(prefix[:length])
                self._at_mark = True
                return length
        self.start_empty()
        return 0

    def _can_cut(self, length: int) -> bool:
        if length == len(self._marked) and self._at_mark:
            return True
        is_last = length == len(self._marked)
        return self.reuse.cuts is Cuts.ANY or (self.reuse.cuts is Cuts.LAST and is_last)

    def _cut(self, length: int) -> bool:
        """Cut off what is behind the first `length` marked segments; False where that fails."""
        if not self._can_cut(length):
            return False
        is_there = length == len(self._marked) and self._at_mark
        if not is_there and not self._memory.truncate(_length(self._marked[:length])):
            return False
        del self._marked[length:]
        self._at_mark = True
        return True

    def _prefill(self, prefix: Prefix, found: int, is_cancelled: Callable[[], bool]) -> None:
        """Decode what is missing of `prefix`, whose first `found` segments the context holds."""
        for index, segment in enumerate(prefix[found:], found):
            self._decode(segment, _length(prefix[:index]), is_cancelled, want_logits=False)
            self._mark(segment)

    def _last_logits(
        self, tails: Sequence[Segment], is_cancelled: Callable[[], bool]
    ) -> list[Logits]:
        """Return the logits after each of `tails`, decoded behind what the context holds."""
        position = _length(self._marked)
        if len(tails) == 1:
            self._decode(tails[0], position, is_cancelled, want_logits=True)
            logits = [self._memory.logits()]
        else:
            if is_cancelled():
                raise Cancelled
            logits = self._memory.decode_lanes(tails, position=position)
        if not all(np.isfinite(one).all() for one in logits):
            raise NotFinite("the model returned logits that are not finite")
        return logits

    def _decode(
        self,
        segment: Segment,
        position: int,
        is_cancelled: Callable[[], bool],
        *,
        want_logits: bool,
    ) -> None:
        """Decode `segment` at `position`; with `want_logits`, keep those after its last token."""
        for start in range(0, len(segment), BATCH_TOKENS):
            if is_cancelled():
                raise Cancelled
            chunk = segment[start : start + BATCH_TOKENS]
            ends = start + len(chunk) == len(segment)
            self._at_mark = False
            self._memory.decode(chunk, position=position + start, want_logits=want_logits and ends)

    def _mark(self, segment: Segment) -> None:
        """Note that the context holds exactly the prompt up to `segment`'s end, and save it.

        Raises:
            MemoryError: there is no memory for a snapshot that the answer depends on.
        """
        self._marked.append(segment)
        self._at_mark = True
        if not self.reuse.restores:
            return
        prefix = tuple(self._marked)
        is_kept = self.cache.reserve(prefix, self._memory.snapshot_size())
        if not (is_kept or self.reuse.canonical):
            return
        try:
            snapshot = self._memory.snapshot()
        except MemoryError:
            self.cache.halve()
            log(logging.WARNING, "state_cache_halved", mib=self.cache.max_bytes >> 20)
            if not self.reuse.canonical:
                return
            is_kept, snapshot = False, self._memory.snapshot()
        if is_kept:
            self.cache.add(prefix, snapshot)
        if self.reuse.canonical:
            self._memory.restore(snapshot)


@dataclass(frozen=True)
class Started:
    """An engine whose reuse is proven, and logits that it gave meanwhile."""

    engine: Engine
    logits: Logits


def start_engine(
    memory: Memory,
    cache: StateCache,
    probe: Encoded,
    candidates: Sequence[Reuse],
    lanes: Lanes = ONE_LANE,
) -> Started:
    """Return an engine with the first of `candidates` that moves no bit of `probe`'s logits.

    The last of them is taken unproven: it must be one that is always right.

    Raises:
        ScoringError: the probe cannot be scored at all.
    """
    for reuse in candidates[:-1]:
        engine = Engine(memory, reuse, StateCache(max_bytes=1 << 62, max_entries=1 << 30), lanes)
        engine.start_empty()
        try:
            logits = _proven_logits(engine, probe)
        except ScoringError:
            # A context that was not brought back where it should be makes llama.cpp fail.
            continue
        if logits is not None:
            _keep_head(engine, cache, probe)
            return Started(engine, logits)
    engine = Engine(memory, candidates[-1], cache, lanes)
    engine.start_empty()
    return Started(engine, engine.forward(probe, _never).logits)


def _proven_logits(engine: Engine, probe: Encoded) -> Logits | None:
    """Score parts of `probe` in every way that the engine can come to them; None when a bit moves.

    The parts are its head, one of two short states, and its last token, so that a start costs
    little more than the head.
    """
    head, *others = probe.segments
    body: Segment = tuple(token for segment in others for token in segment)
    one = replace(probe, segments=(head, body[:2], body[-1:]))
    two = replace(probe, segments=(head, body[2:4], body[-1:]))

    def logits(encoded: Encoded) -> Logits:
        return engine.forward(encoded, _never).logits

    reuse = engine.reuse
    engine.reuse = replace(reuse, canonical=False)
    direct = logits(one)
    engine.reuse = reuse
    # From here on each starts from the head, cut or restored, until its state is in memory.
    other = logits(two)
    engine.cache.drop(one.segments[:-1])
    again = logits(one)
    other_restored = logits(two)
    other_in_context = logits(two)
    same = np.array_equal(other, other_restored) and np.array_equal(other, other_in_context)
    # Two states that give the same logits are one that was taken for the other.
    same = same and not np.array_equal(other, direct)
    # Beyond the window, a canonical context is rightly laid out otherwise than a direct one.
    if not reuse.canonical or one.input_tokens <= reuse.window:
        same = same and np.array_equal(direct, again)
    return other if same else None


def _keep_head(engine: Engine, cache: StateCache, probe: Encoded) -> None:
    """Go on with `cache`, and of the probes keep only the head."""
    head = probe.segments[:1]
    snapshot = engine.cache.get(head)
    if snapshot is not None and cache.reserve(head, snapshot.nbytes):
        cache.add(head, snapshot)
    engine.cache = cache


def _never() -> bool:
    return False


def _shared(marked: Sequence[Segment], prefix: Prefix) -> int:
    """Return how many leading segments both have in common."""
    shared = 0
    for ours, theirs in zip(marked, prefix, strict=False):
        if ours != theirs:
            break
        shared += 1
    return shared


def _length(segments: Sequence[Segment]) -> int:
    return sum(len(segment) for segment in segments)
