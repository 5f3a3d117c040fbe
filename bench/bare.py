"""llama.cpp and nothing else: what the reference path costs, and what cannot be avoided.

The reference path keeps nothing: each prompt is decoded whole, 512 tokens at a time, on one
context. The limit decodes exactly the tokens that had to be computed, and counts nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from ctypes import c_uint8
from pathlib import Path
from typing import Any

import numpy as np

from adapter.decision import Decision
from adapter.llama import Library, Model
from adapter.prompt import PromptTemplate, plain_template, render_template
from adapter.tokens import Encoder
from bench.rows import BenchError

BATCH_TOKENS = 512

Tokens = tuple[int, ...]


class RawContext:
    """One llama.cpp context of one sequence, driven straight through the bindings."""

    def __init__(
        self,
        api: Any,
        model: Any,
        *,
        tokens: int,
        threads: int,
        batch_tokens: int = BATCH_TOKENS,
        flash_attention: bool | None = None,
    ) -> None:
        """Create the context on a native `model`; flash attention is llama.cpp's choice if None.

        Raises:
            BenchError: llama.cpp cannot create it.
        """
        # llama.cpp lowers a larger size by itself, and then aborts when a decode exceeds it.
        batch_tokens = min(batch_tokens, tokens)
        params = api.llama_context_default_params()
        params.n_ctx = tokens
        params.n_batch = params.n_ubatch = batch_tokens
        params.n_threads = params.n_threads_batch = threads
        params.n_outputs_max = 1
        if flash_attention is not None:
            params.flash_attn_type = int(flash_attention)
        self._handle = api.llama_init_from_model(model, params)
        if not self._handle:
            raise BenchError(f"llama.cpp cannot create a context of {tokens} tokens")
        self._api = api
        self._memory = api.llama_get_memory(self._handle)
        self._batch = api.llama_batch_init(batch_tokens, 0, 1)
        self._batch_tokens = batch_tokens
        self.position = 0

    def decode(self, tokens: Sequence[int]) -> None:
        """Decode `tokens` behind what the context holds and wait for the last one's logits.

        Raises:
            BenchError: llama.cpp failed.
        """
        for start in range(0, len(tokens), self._batch_tokens):
            chunk = tokens[start : start + self._batch_tokens]
            self._fill(chunk, last_has_logits=start + len(chunk) == len(tokens))
            status = self._api.llama_decode(self._handle, self._batch)
            if status != 0:
                raise BenchError(f"llama_decode returned {status}")
            self.position += len(chunk)
        self._api.llama_get_logits_ith(self._handle, -1)

    def _fill(self, tokens: Sequence[int], *, last_has_logits: bool) -> None:
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        np.ctypeslib.as_array(batch.token, shape=(count,))[:] = tokens
        np.ctypeslib.as_array(batch.pos, shape=(count,))[:] = np.arange(
            self.position, self.position + count
        )
        np.ctypeslib.as_array(batch.logits, shape=(count,))[:] = 0
        batch.logits[count - 1] = last_has_logits
        for index in range(count):
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0

    def clear(self) -> None:
        """Forget everything."""
        self._api.llama_memory_clear(self._memory, True)
        self.position = 0

    def truncate(self, position: int) -> bool:
        """Forget what comes after `position`; False where this memory cannot."""
        done = bool(self._api.llama_memory_seq_rm(self._memory, 0, position, -1))
        if done:
            self.position = position
        return done

    def snapshot(self) -> tuple[int, Any]:
        """Return the position and the whole state."""
        size = self._api.llama_state_seq_get_size(self._handle, 0)
        buffer = (c_uint8 * size)()
        if self._api.llama_state_seq_get_data(self._handle, buffer, size, 0) != size:
            raise BenchError("llama.cpp could not save its state")
        return self.position, buffer

    def restore(self, snapshot: tuple[int, Any]) -> None:
        """Bring back what `snapshot` returned."""
        position, buffer = snapshot
        self.clear()
        if self._api.llama_state_seq_set_data(self._handle, buffer, len(buffer), 0) == 0:
            raise BenchError("llama.cpp could not restore its state")
        self.position = position

    def close(self) -> None:
        """Free the context."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._handle)


class Bare:
    """A model and one raw context, and the prompts of the adapter's own encoder."""

    def __init__(self, gguf: Path, *, threads: int, gpu_layers: int, context_tokens: int) -> None:
        self._open = ExitStack()
        library = Library(None)
        model = self._open.enter_context(closing(Model(library, gguf, gpu_layers=gpu_layers)))
        self._vocabulary = model.vocabulary
        self._encoder = Encoder(
            model.vocabulary, chat_template(model), context_tokens=context_tokens
        )
        self._context = self._open.enter_context(
            closing(RawContext(library.api, model.handle, tokens=context_tokens, threads=threads))
        )
        self._held: Tokens | None = None
        self._held_snapshot: tuple[int, Any] | None = None

    def close(self) -> None:
        """Free the context and the model."""
        self._open.close()

    def count_tokens(self, text: str) -> int:
        """Return how many tokens `text` has."""
        return len(self._vocabulary.tokenize(text, parse_special=False))

    def segments(self, decision: Decision, layout: str) -> tuple[Tokens, ...]:
        """Return the prompt's tokens as the adapter cuts them: head, what may be kept, rest."""
        return self._encoder.encode(decision, layout=layout).segments

    def reference(self, prompt: Tokens) -> float:
        """Return the seconds of a whole prompt on an empty context."""
        self._held = None
        start = time.perf_counter()
        self._context.clear()
        self._context.decode(prompt)
        return time.perf_counter() - start

    def reference_shared(self, trunk: Tokens, branches: Sequence[Tokens]) -> float:
        """Return the seconds of a shared state: one prefill, a snapshot restored per question."""
        self._held = None
        start = time.perf_counter()
        self._context.clear()
        self._context.decode(trunk)
        snapshot = self._context.snapshot()
        for branch in branches:
            self._context.restore(snapshot)
            self._context.decode(branch)
        return time.perf_counter() - start

    def limit(self, held: Tokens, trunk: Tokens, branches: Sequence[Tokens]) -> float:
        """Return the seconds of decoding `trunk` behind `held`, and each branch behind both.

        Holding `held`, and coming back to the trunk's end between branches, count for nothing.
        """
        self._hold(held)
        seconds = self._timed(trunk) if trunk else 0.0
        back = self._context.position
        snapshot = self._context.snapshot() if len(branches) > 1 else None
        for branch in branches:
            if self._context.position != back and not self._context.truncate(back):
                assert snapshot is not None, "this is a bug: there is only one branch"
                self._context.restore(snapshot)
            seconds += self._timed(branch)
        return seconds

    def _hold(self, held: Tokens) -> None:
        if held != self._held or self._held_snapshot is None:
            self._context.clear()
            self._context.decode(held)
            self._held, self._held_snapshot = held, self._context.snapshot()
        elif not self._context.truncate(len(held)):
            self._context.restore(self._held_snapshot)

    def _timed(self, tokens: Tokens) -> float:
        start = time.perf_counter()
        self._context.decode(tokens)
        return time.perf_counter() - start


def chat_template(model: Model) -> PromptTemplate:
    """Return the model's own template, or the plain one."""
    if model.chat_template is None:
        return plain_template()
    vocabulary = model.vocabulary
    bos, eos = (
        "" if token is None else vocabulary.pieces[token].decode("utf-8", "replace")
        for token in (vocabulary.bos, vocabulary.eos)
    )
    return render_template(model.chat_template, bos_token=bos, eos_token=eos)
