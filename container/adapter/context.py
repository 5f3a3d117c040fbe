"""What a model decodes in: the part of the door to llama.cpp that handles arrays."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import re
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from adapter.errors import ScoringError, StartupError
from adapter.llama import Model

_BYTES = ctypes.POINTER(ctypes.c_uint8)
# In main memory, as llama.cpp's log has it: caches, and buffers for computing.
_HOST_BUFFER = re.compile(r": +(?:CPU|\w+_Host) +\w+ buffer size = +([\d.]+) MiB")


class Context:
    """One llama.cpp context; all calls come from the thread that made it.

    It holds one sequence, number 0, and lanes that are filled and emptied within one call.
    """

    def __init__(
        self,
        model: Model,
        *,
        tokens: int,
        threads: int,
        batch_tokens: int,
        lanes: int = 1,
        verify: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a context for `tokens` positions, decoded `batch_tokens` at a time.

        More than one of `lanes` can be decoded at once, and share the positions. `verify` is called
        before each decode and after it, and raises when the model is no longer what was loaded.
        `host_bytes` says how much memory it takes, beside the model's.

        Raises:
            StartupError: llama.cpp cannot create it, usually for want of memory.
        """
        self._api = model.library.api
        self._model = model
        self._owner = threading.get_ident()
        self._verify = verify
        self.batch_tokens = batch_tokens
        self.capacity = tokens
        params = self._api.llama_context_default_params()
        params.n_ctx = tokens
        params.n_batch = params.n_ubatch = batch_tokens
        self.lanes = lanes
        params.n_seq_max = 1 if lanes == 1 else 1 + lanes
        params.kv_unified = lanes > 1
        if hasattr(params, "n_outputs_max"):
            # Fewer outputs than sequences, or than a batch asks for, aborts the process.
            params.n_outputs_max = params.n_seq_max
        params.n_threads = params.n_threads_batch = threads
        model.library.errors.clear()
        model.library.lines.clear()
        self._handle = self._api.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise StartupError(
                f"llama.cpp cannot create a context of {tokens} tokens: "
                f"{model.library.last_error()}; lower BALLOT_CONTEXT_TOKENS or add memory"
            )
        self.host_bytes = _host_bytes(model.library.lines)
        self._memory = self._api.llama_get_memory(self._handle)
        self._batch = self._api.llama_batch_init(batch_tokens, 0, 1)
        for index in range(batch_tokens):
            self._batch.n_seq_id[index] = 1
            self._batch.seq_id[index][0] = 0
        self._tokens = np.ctypeslib.as_array(self._batch.token, shape=(batch_tokens,))
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape=(batch_tokens,))
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape=(batch_tokens,))

    def decode(self, tokens: tuple[int, ...], *, position: int, want_logits: bool) -> None:
        """Run one decode of at most `batch_tokens` tokens at `position` and after it.

        With `want_logits`, the logits after the last of them can be read until the next call.

        Raises:
            ScoringError: llama.cpp failed; what the sequence holds is then unknown.
        """
        self._check_owner()
        self._check_fits(len(tokens), position)
        self._fill(0, tokens, position, sequence=0)
        self._wanted[len(tokens) - 1] = want_logits
        self._run(len(tokens))

    def decode_lanes(
        self, tails: Sequence[tuple[int, ...]], *, position: int
    ) -> list[npt.NDArray[np.float32]]:
        """Run one decode of all `tails`, each as if it alone followed the sequence at `position`.

        Returns the logits after each tail's last token. The sequence is as before.

        Raises:
            ScoringError: llama.cpp failed, or they do not fit.
        """
        self._check_owner()
        total = sum(map(len, tails))
        self._check_fits(total, position)
        if not (0 < len(tails) <= self.lanes and all(tails)):
            raise ScoringError(f"{len(tails)} tails do not fit {self.lanes} lanes: a bug")
        ends = list(itertools.accumulate(map(len, tails)))
        try:
            for lane, (tail, end) in enumerate(zip(tails, ends, strict=True), 1):
                self._api.llama_memory_seq_cp(self._memory, 0, lane, -1, -1)
                self._fill(end - len(tail), tail, position, sequence=lane)
                self._wanted[end - 1] = True
            self._run(total)
            return [self._logits_at(end - 1) for end in ends]
        finally:
            for lane in range(1, len(tails) + 1):
                self._api.llama_memory_seq_rm(self._memory, lane, -1, -1)

    def _check_fits(self, count: int, position: int) -> None:
        if not 0 < count <= self.batch_tokens or position + count > self.capacity:
            raise ScoringError(f"a decode of {count} tokens at {position} does not fit: a bug")

    def _fill(self, at: int, tokens: tuple[int, ...], position: int, *, sequence: int) -> None:
        """Put `tokens` into the batch from `at` on, with no logits wanted."""
        end = at + len(tokens)
        self._tokens[at:end] = tokens
        self._positions[at:end] = np.arange(position, position + len(tokens))
        self._wanted[at:end] = 0
        if self.lanes > 1:
            for index in range(at, end):
                self._batch.seq_id[index][0] = sequence

    def _run(self, count: int) -> None:
        self._batch.n_tokens = count
        self._verify()
        status = self._api.llama_decode(self._handle, self._batch)
        self._verify()
        if status != 0:
            raise ScoringError(f"llama_decode returned {status}")

    def logits(self) -> npt.NDArray[np.float32]:
        """Return a copy of the last logits asked for, of shape (vocabulary,)."""
        self._check_owner()
        return self._logits_at(-1)

    def _logits_at(self, index: int) -> npt.NDArray[np.float32]:
        pointer = self._api.llama_get_logits_ith(self._handle, index)
        if not pointer:
            raise ScoringError("llama.cpp has no logits: a bug")
        size = self._model.vocabulary.size
        return np.ctypeslib.as_array(pointer, shape=(size,)).astype(np.float32, copy=True)

    def truncate(self, position: int) -> bool:
        """Forget everything from `position` on; False where this memory cannot."""
        self._check_owner()
        return bool(self._api.llama_memory_seq_rm(self._memory, 0, position, -1))

    def clear(self, *, wipe: bool) -> None:
        """Forget everything; with `wipe`, overwrite it too, which takes a while."""
        self._check_owner()
        self._api.llama_memory_clear(self._memory, wipe)

    def snapshot_size(self) -> int:
        """Return how many bytes a snapshot would have now."""
        self._check_owner()
        return int(self._api.llama_state_seq_get_size(self._handle, 0))

    def snapshot(self) -> npt.NDArray[np.uint8]:
        """Return the sequence's whole state.

        Raises:
            MemoryError: there is no room for it.
            ScoringError: llama.cpp failed.
        """
        buffer = _own_pages(self.snapshot_size())
        written = self._api.llama_state_seq_get_data(
            self._handle, buffer.ctypes.data_as(_BYTES), len(buffer), 0
        )
        if written != len(buffer):
            raise ScoringError("llama.cpp could not save its state")
        return buffer

    def restore(self, snapshot: npt.NDArray[np.uint8]) -> None:
        """Replace the sequence's state by one that `snapshot` returned."""
        self.clear(wipe=False)
        read = self._api.llama_state_seq_set_data(
            self._handle, snapshot.ctypes.data_as(_BYTES), len(snapshot), 0
        )
        if read != len(snapshot):
            raise ScoringError("llama.cpp could not restore its state")

    def close(self) -> None:
        """Free the context."""
        if self._handle:
            self._check_owner()
            self._api.llama_batch_free(self._batch)
            self._api.llama_free(self._handle)
            self._handle = None

    def _check_owner(self) -> None:
        if threading.get_ident() != self._owner:
            raise ScoringError("a context is used from another thread than its owner: a bug")


def _host_bytes(log_lines: Iterable[str]) -> int:
    """Return how many bytes of main memory a context takes, out of llama.cpp's log of making it."""
    sizes = [match[1] for line in log_lines if (match := _HOST_BUFFER.search(line))]
    return int(sum(map(float, sizes)) * (1 << 20))


def _own_pages(size: int) -> npt.NDArray[np.uint8]:
    """Return `size` bytes that go back to the system as soon as nobody holds them.

    What malloc hands out for snapshots of ever other sizes leaves holes that stay with the process:
    half as much again as is held.
    """
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for a snapshot of {size} bytes") from error
    return np.frombuffer(pages, np.uint8)
