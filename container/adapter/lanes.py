"""Which prompts are merged into one decode, where merging is wanted.

A GPU is hardly busier with eight short prompts than with one. But logits depend on what is decoded
beside them, so an answer then depends, a little, on what was asked at the same moment: one lane,
which merges nothing, is what everybody gets who does not ask for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adapter.tokens import Encoded


@dataclass(frozen=True)
class Lanes:
    """How many prompts go into one decode, and how many tokens into it and into the context."""

    count: int = 1
    batch_tokens: int = 512
    context_tokens: int = 0

    def batches(self, encoded: Sequence[Encoded], order: Sequence[int]) -> Iterator[list[int]]:
        """Cut `order`, the indices of `encoded`, into batches to be decoded at once.

        Prompts of one batch differ in their last segment alone.
        """
        batch: list[int] = []
        for index in order:
            if batch and not self.fit([encoded[item] for item in (*batch, index)]):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def fit(self, several: Sequence[Encoded]) -> bool:
        """Whether prompts, of which all but the last are known to fit, go into one decode."""
        first, last = several[0], several[-1]
        tokens = sum(len(one.segments[-1]) for one in several)
        held = first.input_tokens - len(first.segments[-1])
        return (
            len(several) <= self.count
            and first.segments[:-1] == last.segments[:-1]
            and tokens <= self.batch_tokens
            and held + tokens <= self.context_tokens
        )
