"""From prompt text to token ids: what the template wrote is markup, what a caller wrote never is.

The ids are those of the whole prompt tokenized at once, except that user text that spells a
control token is spelled out in ordinary tokens. The prompt is then cut into segments at places
that depend on the prompt alone, because llama.cpp's logits depend on where decodes are cut.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from string import ascii_uppercase
from typing import Protocol, TypeVar

from adapter.decision import LAYOUTS, Decision, Scoring
from adapter.errors import StartupError, TooLarge
from adapter.prompt import Prompt, PromptTemplate, write_prompt

MAX_OPTIONS = 255
# A shorter state is decoded with what follows it: its own decode would cost more than it saves.
MIN_STATE_TOKENS = 64
# Who puts the criterion first says that it comes again: it always gets a decode of its own.
MIN_CRITERION_TOKENS = 1
ValueT = TypeVar("ValueT", covariant=True)
_LABELS = (*ascii_uppercase, *(a + b for a, b in product(ascii_uppercase, repeat=2)))


class Table(Protocol[ValueT]):
    """A value for each token."""

    def __getitem__(self, token: int) -> ValueT: ...

    def __iter__(self) -> Iterator[ValueT]: ...


class Vocabulary(Protocol):
    """What tokenization needs of a model's vocabulary; `adapter.llama.Vocabulary` is one."""

    NORMAL: int
    CONTROL: int
    USER_DEFINED: int
    BYTE: int
    LSTRIP: int
    RSTRIP: int

    @property
    def attributes(self) -> Table[int]: ...

    @property
    def pieces(self) -> Table[bytes]: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def adds_bos(self) -> bool: ...

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]: ...


@dataclass(frozen=True)
class Encoded:
    """A decision ready to be decoded.

    `segments` are the token ids, cut canonically: head, what the layout puts first (a state only
    where it is long enough), rest.
    `slots` are the token ids that stand for the options, in their order.
    """

    segments: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]
    prompt_sha256: str
    prompt_version: str

    @property
    def input_tokens(self) -> int:
        """How many tokens the prompt has."""
        return sum(len(segment) for segment in self.segments)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The whole prompt's token ids."""
        return tuple(token for segment in self.segments for token in segment)


class Encoder:
    """Encodes decisions for one vocabulary and one chat template."""

    def __init__(
        self, vocabulary: Vocabulary, template: PromptTemplate, *, context_tokens: int
    ) -> None:
        """Tokenize the template's own text once and verify the answer slots.

        Raises:
            StartupError: the letters A and B are not one token each after the template.
        """
        self._vocabulary = vocabulary
        self._template = template
        self._context_tokens = context_tokens
        self._markup = _Markup(vocabulary, template)
        opening, self._text_before = self._markup.split_after_last(template.before)
        self._text_after, closing = self._markup.split_before_first(template.after)
        self._opening = self._tokenize_opening(opening)
        self._closing = tuple(vocabulary.tokenize(closing, parse_special=True))
        self.labels, self.slots = self._verify_slots(closing)

    def read_vocabulary(self) -> None:
        """Read all tokens, which only unusual texts need: a start-up need not wait for it."""
        _ = self._ordinary, self._longest_piece

    @cached_property
    def _ordinary(self) -> dict[bytes, int]:
        return _ordinary_tokens(self._vocabulary)

    @cached_property
    def _longest_piece(self) -> int:
        return max(map(len, self._vocabulary.pieces))

    @property
    def max_options(self) -> int:
        """How many options a decision may have: one label that is one token for each."""
        return len(self.labels)

    def encode(
        self, decision: Decision, *, layout: str = LAYOUTS[0], field: str | None = None
    ) -> Encoded:
        """Write, tokenize and cut `decision`, which stands at `field` of its request.

        Raises:
            TooLarge: the prompt has more tokens than the context.
        """
        prompt = write_prompt(decision, self._template, self.labels, layout)
        body = self._text_before + prompt.content + self._text_after
        # Some texts take seconds a megabyte to tokenize: those that cannot fit are not.
        if (size := len(body.encode())) > self._context_tokens:
            self._check_length(math.ceil(size / self._longest_piece), field, "at least ")
        ids = self._tokenize_text(body)
        self._check_length(len(ids), field)
        least = MIN_STATE_TOKENS if layout == "evidence_first" else MIN_CRITERION_TOKENS
        return Encoded(
            segments=self._cut(prompt, body, ids, least),
            slots=self.slots[: len(decision.options)],
            prompt_sha256=prompt.sha256,
            prompt_version=prompt.version,
        )

    def encode_orders(
        self, decision: Decision, scoring: Scoring, *, field: str | None = None
    ) -> tuple[Encoded, ...]:
        """Encode `decision` in each option order that `scoring` asks for: declared, reversed.

        Raises:
            TooLarge: a prompt has more tokens than the context.
        """
        orders = (decision, decision.reversed())[: scoring.orders]
        return tuple(self.encode(order, layout=scoring.layout, field=field) for order in orders)

    def _check_length(self, body_tokens: int, field: str | None, bound: str = "") -> None:
        total = len(self._opening) + body_tokens + len(self._closing)
        if total > self._context_tokens:
            raise TooLarge(
                f"the prompt has {bound}{total} tokens; the limit is {self._context_tokens}",
                code="too_many_tokens",
                field=field,
            )

    def _tokenize_opening(self, opening: str) -> tuple[int, ...]:
        ids = self._vocabulary.tokenize(opening, parse_special=True)
        bos = self._vocabulary.bos
        if self._vocabulary.adds_bos and bos is not None and ids[:1] != [bos]:
            ids = [bos, *ids]
        return tuple(ids)

    def _tokenize_text(self, text: str) -> list[int]:
        """Tokenize text that a caller may have written: no markup token comes out of it."""
        ids = self._vocabulary.tokenize(text, parse_special=False)
        smuggled = {token for token in set(ids) if token in self._markup}
        if not smuggled:
            return ids
        spellings = {token: _spell(self._markup.text(token), self._ordinary) for token in smuggled}
        return [part for token in ids for part in spellings.get(token, (token,))]

    def _cut(
        self, prompt: Prompt, body: str, ids: list[int], least: int
    ) -> tuple[tuple[int, ...], ...]:
        """Cut into head, prefix and rest; a prefix of fewer than `least` tokens joins the rest."""
        ends = list(accumulate(len(self._vocabulary.pieces[token]) for token in ids))
        lead = len(self._text_before)
        head, prefix = (
            bisect_right(ends, self._written_bytes(body, lead + end, ends[-1]))
            for end in (prompt.head_end, prompt.prefix_end)
        )
        first = self._opening + tuple(ids[:head])
        middle = tuple(ids[head:prefix])
        last = tuple(ids[prefix:]) + self._closing
        if len(middle) < least:
            middle, last = (), middle + last
        return tuple(segment for segment in (first, middle, last) if segment)

    def _written_bytes(self, body: str, end: int, written: int) -> int:
        """Return how many of the `written` bytes of `body`'s tokens stand before `body[end]`."""
        size, whole = len(body[:end].encode()), len(body.encode())
        if written < whole:
            lost = self._lost_bytes
            size, whole = (len(text.encode().translate(None, lost)) for text in (body[:end], body))
        # Some vocabularies put a space before a text.
        return size + max(0, written - whole)

    @cached_property
    def _lost_bytes(self) -> bytes:
        """The bytes that have no token: llama.cpp leaves those out of the prompt."""
        return bytes(byte for byte in range(256) if bytes([byte]) not in self._ordinary)

    def _verify_slots(self, closing: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Find the labels that are one token, of their own, right after the prompt."""
        tail = self._text_after + closing
        without = self._vocabulary.tokenize(tail, parse_special=True)
        labels: list[str] = []
        slots: list[int] = []
        for label in _LABELS:
            ids = self._vocabulary.tokenize(tail + label, parse_special=True)
            if len(ids) == len(without) + 1 and ids[:-1] == without and ids[-1] not in slots:
                labels.append(label)
                slots.append(ids[-1])
            elif label in ("A", "B"):
                raise StartupError(
                    f"the letter {label} is not one token after this chat template; "
                    "set BALLOT_CHAT_TEMPLATE to one that ends where an answer can start"
                )
            if len(labels) == MAX_OPTIONS:
                break
        return tuple(labels), tuple(slots)


class _Markup:
    """The tokens that only a template may write.

    These are the control tokens, and those user-defined tokens that this template uses as markup
    (`<think>` for some): llama.cpp would read the latter out of any text.
    """

    def __init__(self, vocabulary: Vocabulary, template: PromptTemplate) -> None:
        self._vocabulary = vocabulary
        written = {
            token
            for text in (template.before, template.after)
            for token in vocabulary.tokenize(text, parse_special=True)
        }
        user_defined = vocabulary.USER_DEFINED
        self._user_defined = {
            token for token in written if vocabulary.attributes[token] & user_defined
        }
        self._written = {self.text(token): token for token in written if token in self}

    def __contains__(self, token: int) -> bool:
        is_control = self._vocabulary.attributes[token] & self._vocabulary.CONTROL
        return bool((is_control or token in self._user_defined) and self.text(token).strip())

    def text(self, token: int) -> str:
        """Return how `token` is written."""
        return self._vocabulary.pieces[token].decode("utf-8", "replace")

    def split_after_last(self, text: str) -> tuple[str, str]:
        """Split `text` behind its last markup token, as llama.cpp does: it may eat white space."""
        found = list(self._find(text))
        if not found:
            return "", text
        rest = text[found[-1].end() :]
        eats = self._attributes(found[-1]) & self._vocabulary.RSTRIP
        return text[: found[-1].end()], rest.lstrip() if eats else rest

    def split_before_first(self, text: str) -> tuple[str, str]:
        """Split `text` before its first markup token, as llama.cpp does: it may eat white space."""
        first = next(self._find(text), None)
        if first is None:
            return text, ""
        rest = text[: first.start()]
        eats = self._attributes(first) & self._vocabulary.LSTRIP
        return rest.rstrip() if eats else rest, text[first.start() :]

    def _find(self, text: str) -> Iterator[re.Match[str]]:
        if not self._written:
            return iter(())
        longest_first = sorted(self._written, key=len, reverse=True)
        return re.finditer("|".join(map(re.escape, longest_first)), text)

    def _attributes(self, found: re.Match[str]) -> int:
        return self._vocabulary.attributes[self._written[found.group()]]


def _ordinary_tokens(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return the tokens that stand for one character or one byte of any text."""
    ordinary: dict[bytes, int] = {}
    for token in [at for at, piece in enumerate(vocabulary.pieces) if len(piece) <= 4]:
        attributes, piece = vocabulary.attributes[token], vocabulary.pieces[token]
        if attributes & vocabulary.CONTROL:
            continue
        # A character's own token stands before the byte that it may also be.
        if attributes & vocabulary.NORMAL:
            ordinary[piece] = token
        elif attributes & vocabulary.BYTE:
            ordinary.setdefault(piece, token)
    return ordinary


def _spell(text: str, ordinary: dict[bytes, int]) -> tuple[int, ...]:
    """Return the ordinary tokens that spell `text` character by character."""
    ids = []
    for character in text:
        data = character.encode("utf-8")
        if data in ordinary:
            ids.append(ordinary[data])
        else:
            ids.extend(ordinary[byte] for byte in _bytes(data) if byte in ordinary)
    return tuple(ids)


def _bytes(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]
