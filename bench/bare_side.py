"""`bench.bare` in a process of its own, so that it shares nothing with what it is compared to."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from adapter.decision import Decision
from bench.bare import Bare, Tokens
from bench.rows import BenchError


class BareSide:
    """Calls a `Bare` in another process; seconds are measured there, around the decodes alone."""

    def __init__(self, gguf: Path, *, threads: int, gpu_layers: int, context_tokens: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, gguf, threads, gpu_layers, context_tokens), daemon=True
        )
        self._process.start()
        theirs.close()

    def count_tokens(self, text: str) -> int:
        """Return how many tokens `text` has."""
        return int(self._call("count_tokens", text))

    def segments(self, decision: Decision, *, layout: str = "evidence_first") -> tuple[Tokens, ...]:
        """Return the prompt's tokens as the adapter cuts them: head, what may be kept, rest."""
        segments: tuple[Tokens, ...] = self._call("segments", decision, layout)
        return segments

    def reference(self, prompt: Tokens) -> float:
        """Return the seconds of a whole prompt on an empty context."""
        return float(self._call("reference", prompt))

    def reference_shared(self, trunk: Tokens, branches: Sequence[Tokens]) -> float:
        """Return the seconds of a shared state: one prefill, a snapshot restored per question."""
        return float(self._call("reference_shared", trunk, branches))

    def limit(self, held: Tokens, trunk: Tokens, branches: Sequence[Tokens]) -> float:
        """Return the seconds of the decodes that cannot be avoided."""
        return float(self._call("limit", held, trunk, branches))

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((method, arguments))
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise BenchError(f"the bare llama.cpp process ended in {method}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._pipe.close()
        self._process.join()


def _serve(
    pipe: Connection, gguf: Path, threads: int, gpu_layers: int, context_tokens: int
) -> None:
    bare = Bare(gguf, threads=threads, gpu_layers=gpu_layers, context_tokens=context_tokens)
    with closing(bare):
        while True:
            try:
                method, arguments = pipe.recv()
            except EOFError:
                return
            pipe.send(getattr(bare, method)(*arguments))
