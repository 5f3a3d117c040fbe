"""From prompt text to token ids: what the template wrote is markup, what a caller wrote never is.

The ids are those of the whole prompt tokenized at once, except that user text that spells a
control token is spelled out in ordinary tokens. The prompt is then cut into segments at places
that depend on the prompt alone, because llama.cpp's logits depend on where decodes are cut.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from string import ascii_uppercase
from typing import Protocol

from adapter.decision import LAYOUTS, Decision, Scoring
from adapter.errors import StartupError, TooLarge
from adapter.prompt import Prompt, PromptTemplate, write_prompt

MAX_OPTIONS = 255
# A shorter state is decoded with what follows it: its own decode would cost more than it saves.
MIN_STATE_TOKENS = 64
# Who puts the criterion first says that it comes again: it always gets a decode of its own.
MIN_CRITERION_TOKENS = 1
_LABELS = (*ascii_uppercase, *(a + b for a, b in product(ascii_uppercase, repeat=2)))


class Vocabulary(Protocol):
    """What tokenization needs of a model's vocabulary; `adapter.llama.Vocabulary` is one."""

    NORMAL: int
    CONTROL: int
    USER_DEFINED: int
    BYTE: int
    LSTRIP: int
    RSTRIP: int
    attributes: list[int]
    pieces: list[bytes]

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
        markup = _markup_tokens(vocabulary, template)
        self._longest_piece = max(map(len, vocabulary.pieces))
        ordinary = _ordinary_tokens(vocabulary)
        self._spellings = {token: _spell(text, ordinary) for text, token in markup.items()}
        # Some vocabularies have no token for some bytes: llama.cpp leaves those out of the prompt.
        self._lost_bytes = bytes(byte for byte in range(256) if bytes([byte]) not in ordinary)
        opening, self._text_before = _split_after_last(template.before, vocabulary, markup)
        self._text_after, closing = _split_before_first(template.after, vocabulary, markup)
        self._opening = self._tokenize_opening(opening)
        self._closing = tuple(vocabulary.tokenize(closing, parse_special=True))
        self.labels, self.slots = self._verify_slots(closing)

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
        self._check_length(math.ceil(len(body.encode()) / self._longest_piece), field, "at least ")
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
        if self._spellings.keys().isdisjoint(ids):
            return ids
        return [part for token in ids for part in self._spellings.get(token, (token,))]

    def _cut(
        self, prompt: Prompt, body: str, ids: list[int], least: int
    ) -> tuple[tuple[int, ...], ...]:
        """Cut into head, prefix and rest; a prefix of fewer than `least` tokens joins the rest."""
        lead = len(self._text_before)
        head = self._tokens_within(ids, body, lead + prompt.head_end)
        prefix = self._tokens_within(ids, body, lead + prompt.prefix_end)
        first = self._opening + tuple(ids[:head])
        middle = tuple(ids[head:prefix])
        last = tuple(ids[prefix:]) + self._closing
        if len(middle) < least:
            middle, last = (), middle + last
        return tuple(segment for segment in (first, middle, last) if segment)

    def _tokens_within(self, ids: list[int], body: str, end: int) -> int:
        """Return how many of `ids`, the tokens of `body`, end at or before character `end`."""
        pieces = self._vocabulary.pieces
        size = self._tokenized_bytes(body[:end])
        # Some vocabularies put a space before a text.
        written = sum(len(pieces[token]) for token in ids)
        size += max(0, written - self._tokenized_bytes(body))
        position = 0
        for index, token in enumerate(ids):
            position += len(pieces[token])
            if position > size:
                return index
        return len(ids)

    def _tokenized_bytes(self, text: str) -> int:
        return len(text.encode("utf-8").translate(None, self._lost_bytes))

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


def _markup_tokens(vocabulary: Vocabulary, template: PromptTemplate) -> dict[str, int]:
    """Return the text and id of every token that only a template may write.

    These are the control tokens, and those user-defined tokens that this template uses as markup
    (`<think>` for some): llama.cpp would read the latter out of any text.
    """
    written = set(vocabulary.tokenize(template.before, parse_special=True))
    written.update(vocabulary.tokenize(template.after, parse_special=True))
    markup = {}
    special = vocabulary.CONTROL | vocabulary.USER_DEFINED
    for token in [at for at, kind in enumerate(vocabulary.attributes) if kind & special]:
        if vocabulary.attributes[token] & vocabulary.CONTROL or token in written:
            text = vocabulary.pieces[token].decode("utf-8", "replace")
            if text.strip():
                markup[text] = token
    return markup


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


def _split_after_last(text: str, vocabulary: Vocabulary, markup: dict[str, int]) -> tuple[str, str]:
    """Split `text` behind its last markup token, as llama.cpp does: it may eat white space."""
    found = list(_find(text, markup))
    if not found:
        return "", text
    last = found[-1]
    rest = text[last.end() :]
    eats = vocabulary.attributes[markup[last.group()]] & vocabulary.RSTRIP
    return text[: last.end()], rest.lstrip() if eats else rest


def _split_before_first(
    text: str, vocabulary: Vocabulary, markup: dict[str, int]
) -> tuple[str, str]:
    """Split `text` before its first markup token, as llama.cpp does: it may eat white space."""
    first = next(_find(text, markup), None)
    if first is None:
        return text, ""
    rest = text[: first.start()]
    eats = vocabulary.attributes[markup[first.group()]] & vocabulary.LSTRIP
    return rest.rstrip() if eats else rest, text[first.start() :]


def _find(text: str, markup: dict[str, int]) -> Iterator[re.Match[str]]:
    # Some vocabularies have thousands: a pattern of all of them takes long to compile.
    written = sorted((item for item in markup if item in text), key=len, reverse=True)
    if not written:
        return iter(())
    return re.finditer("|".join(re.escape(item) for item in written), text)
