"""Chat in OpenAI's format: requests, whole answers, and answers that come in pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ballot.errors import InvalidAnswer, ScoringFailed, TransportFailed, error_from_answer
from ballot.wire import Fields, Json


@dataclass(frozen=True)
class ChatUsage:
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class ChatAnswer:
    """The first answer's text, why it ended ("stop", "length", ...), and the model that gave it.

    `text` is empty where the model gave none (it called a tool); `raw` is the answer as it came.
    """

    text: str
    finish_reason: str | None
    model: str
    usage: ChatUsage | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_answer(cls, fields: Fields) -> ChatAnswer:
        """Read an answer.

        Raises:
            InvalidAnswer: naming the first wrong field by its path.
        """
        choices = fields.objects("choices")
        if not choices:
            raise InvalidAnswer("the answer has no choices", code="invalid_answer")
        message = choices[0].object("message")
        return cls(
            text=message.optional_text("content") or "",
            finish_reason=choices[0].optional_text("finish_reason"),
            model=fields.text("model"),
            usage=_usage(fields),
            raw=fields.values,
        )


def _usage(fields: Fields) -> ChatUsage | None:
    if fields.values.get("usage") is None:
        return None
    usage = fields.object("usage")
    return ChatUsage(usage.whole("prompt_tokens"), usage.whole("completion_tokens"))


def request(
    messages: Sequence[Mapping[str, Json]], options: Mapping[str, Json], *, stream: bool
) -> dict[str, Json]:
    """Return the request as the wire has it; `options` are OpenAI's, such as `max_tokens`."""
    if "stream" in options:
        raise TypeError("chat_stream streams, chat does not: there is no option `stream`")
    body: dict[str, Json] = {"messages": messages, **options}
    return {**body, "stream": True} if stream else body


class DeltaReader:
    """Reads the server-sent events of a streamed answer, however they are cut into chunks."""

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []
        self._ended = False

    def feed(self, chunk: bytes) -> list[str]:
        """Return the pieces of text that `chunk` completes.

        Raises:
            BallotError: the server reports an error inside the stream.
            InvalidAnswer: an event is not what the contract says.
        """
        *lines, self._pending = (self._pending + chunk).replace(b"\r\n", b"\n").split(b"\n")
        events = (self._line(line) for line in lines)
        return [text for data in events if data is not None and (text := self._event(data))]

    def close(self) -> None:
        """Say that the stream has ended.

        Raises:
            TransportFailed: it ended before the answer did.
        """
        if not self._ended:
            raise TransportFailed("the answer broke off", code="broken_stream", retryable=True)

    def _line(self, line: bytes) -> bytes | None:
        """Take in a line; return the data of the event that it ends."""
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        data, self._data = self._data, []
        return b"\n".join(data) if data else None

    def _event(self, data: bytes) -> str:
        if data == b"[DONE]":
            self._ended = True
            return ""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InvalidAnswer("an event is not JSON", code="invalid_answer") from error
        fields = Fields.of(value, "the event")
        if "error" in fields.values:
            raise _reported(data)
        choices = fields.objects("choices")
        if not choices:
            return ""
        if choices[0].optional_text("finish_reason"):
            self._ended = True
        return choices[0].object("delta").optional_text("content") or ""


def _reported(data: bytes) -> ScoringFailed:
    """Return the error that an event reports; its status came before it, and was 200."""
    error = error_from_answer(500, {}, data)
    return ScoringFailed(error.message, code=error.code, request_id=error.request_id)
