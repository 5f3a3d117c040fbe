"""Decodes prompts so that the same prompt gives the same bits, and no token twice in a row.

A prompt's segments are fixed by the prompt alone. What the context still holds of the last prompt
is kept up to the last segment that both share; a cold prompt runs the very same decodes as one
that finds its head and state in memory, and so gets the very same logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from adapter.errors import ScoringError
from adapter.tokens import Encoded

# Prefill is compute-bound from about 64 tokens on, and 512 was the fastest size measured.
BATCH_TOKENS = 512


class Memory(Protocol):
    """The native context that an engine runs on; `adapter.llama.Context` is one."""

    def decode(self, tokens: tuple[int, ...], *, position: int, want_logits: bool) -> None: ...

    def logits(self) -> npt.NDArray[np.float32]: ...

    def truncate(self, position: int) -> bool: ...

    def clear(self) -> None: ...

    def snapshot(self) -> bytes: ...

    def restore(self, snapshot: bytes) -> None: ...


class Cancelled(Exception):
    """Nobody waits for this decision any more."""


@dataclass(frozen=True)
class Forward:
    """One forward pass: float32 logits of shape (vocabulary,), and what it cost."""

    logits: npt.NDArray[np.float32]
    decoded_tokens: int
    cached_tokens: int
    seconds: float


class Reuse(Protocol):
    """A way to bring the context back to an earlier position."""

    name: str

    def mark(self, position: int) -> None:
        """Note that the context now holds exactly `position` tokens, and may come back here."""

    def rewind(self, position: int) -> bool:
        """Bring the context back to a marked `position`; False when it cannot."""


class TailRemoval:
    """Cuts off what comes after the position: attention memories allow it at any place."""

    name = "tail removal"

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def mark(self, position: int) -> None:
        """Nothing to note: any position will do."""

    def rewind(self, position: int) -> bool:
        """Cut the sequence back to `position`."""
        return self._memory.truncate(position)


class Snapshots:
    """Saves the whole state at each mark: for memories with a running state."""

    name = "snapshots"

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._saved: dict[int, bytes] = {}

    def mark(self, position: int) -> None:
        """Save the state at `position` and drop those of later positions."""
        self._forget_after(position)
        self._saved[position] = self._memory.snapshot()

    def rewind(self, position: int) -> bool:
        """Restore the state saved at `position`, if there is one."""
        if position not in self._saved:
            return False
        self._memory.restore(self._saved[position])
        self._forget_after(position)
        return True

    def _forget_after(self, position: int) -> None:
        self._saved = {at: state for at, state in self._saved.items() if at <= position}


class NoReuse:
    """Decodes every prompt from its start: slow, and always right."""

    name = "none"

    def mark(self, position: int) -> None:
        """Nothing to note."""

    def rewind(self, position: int) -> bool:
        """Refuse."""
        return False


class Engine:
    """Runs forward passes on one context, keeping the segments that the next prompt shares."""

    def __init__(self, memory: Memory, reuse: Reuse) -> None:
        self._memory = memory
        self.reuse = reuse
        self._resident: list[tuple[int, ...]] = []

    def forward(self, encoded: Encoded, is_cancelled: Callable[[], bool]) -> Forward:
        """Return the logits after the last token of `encoded`.

        Raises:
            Cancelled: `is_cancelled` answered True between two decodes.
            ScoringError: llama.cpp failed. The next call starts from an empty context.
        """
        start = time.perf_counter()
        try:
            kept = self._keep_shared(encoded.segments)
            cached = _length(encoded.segments[:kept])
            self._decode(encoded.segments[kept:], is_cancelled)
            logits = self._memory.logits()
        except BaseException:
            self.reset()
            raise
        return Forward(
            logits=logits,
            decoded_tokens=encoded.input_tokens - cached,
            cached_tokens=cached,
            seconds=time.perf_counter() - start,
        )

    def reset(self) -> None:
        """Forget everything, so that the next prompt is decoded from its start."""
        self._resident = []
        self._memory.clear()

    def _keep_shared(self, segments: tuple[tuple[int, ...], ...]) -> int:
        """Bring the context back to the segments shared with `segments`; return how many."""
        # The last segment is decoded in any case: its last position has the logits.
        shared = 0
        for ours, theirs in zip(self._resident, segments[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        position = _length(self._resident[:shared])
        if shared and shared < len(self._resident) and not self.reuse.rewind(position):
            shared = 0
        if shared == 0:
            self.reset()
        self._resident = self._resident[:shared]
        return shared

    def _decode(
        self, segments: tuple[tuple[int, ...], ...], is_cancelled: Callable[[], bool]
    ) -> None:
        for index, segment in enumerate(segments):
            is_last = index == len(segments) - 1
            position = _length(self._resident)
            for start in range(0, len(segment), BATCH_TOKENS):
                if is_cancelled():
                    raise Cancelled
                chunk = segment[start : start + BATCH_TOKENS]
                ends = start + len(chunk) == len(segment)
                self._memory.decode(chunk, position=position + start, want_logits=is_last and ends)
            self._resident.append(segment)
            if not is_last:
                self.reuse.mark(position + len(segment))


def start_engine(memory: Memory, reuse: Reuse, probes: Sequence[Encoded]) -> Engine:
    """Return an engine on `memory` that has scored `probes`, its reuse proven by them.

    The probes are scored in order, the first of them cold, and then again backwards, so that each
    finds in memory what the one before left. If that moves a single bit of their logits, the
    engine returned decodes every prompt whole.

    Raises:
        ScoringError: the first probe cannot be scored at all.
    """
    engine = Engine(memory, reuse)
    first = engine.forward(probes[0], _never).logits
    try:
        logits = [first, *(engine.forward(probe, _never).logits for probe in probes[1:])]
        again = [engine.forward(probe, _never).logits for probe in probes[::-1]]
        if all(map(np.array_equal, logits[::-1], again)):
            return engine
    except ScoringError:
        # A context that was not brought back where it should be makes llama.cpp fail.
        pass
    engine.reset()
    return Engine(memory, NoReuse())


def _never() -> bool:
    return False


def _length(segments: list[tuple[int, ...]] | tuple[tuple[int, ...], ...]) -> int:
    return sum(len(segment) for segment in segments)
