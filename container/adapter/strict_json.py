"""JSON from strangers: what parsers disagree about is refused, each with a code of its own."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from adapter.decision import Json
from adapter.errors import InvalidRequest

MAX_DEPTH = 64
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(body: bytes) -> Json:
    """Parse one JSON text.

    Raises:
        InvalidRequest: `invalid_encoding` (not UTF-8), `invalid_json`, `duplicate_key`,
            `invalid_number` (NaN, infinities, more than a float or Python's digit limit holds),
            `invalid_string` (a lone surrogate) or `too_deep` (over `MAX_DEPTH` levels).
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8 at byte {error.start}", code="invalid_encoding"
        ) from None
    _check_depth(text)
    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}",
            code="invalid_json",
        ) from None
    # Strings reach Python decoded, so a surrogate that is left has no partner; only an escape
    # can have written it.
    if "\\u" in text:
        _check_strings(value)
    return value


# An escape is one token, so that an escaped quote never ends a string; every alternative consumes
# what it looks at, which keeps the scan linear on any input.
_TOKEN = re.compile(r'\\.|["\[\]{}]', re.DOTALL)


def _check_depth(text: str) -> None:
    """Refuse deep nesting before the recursive parser and serializer meet it."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    in_string = False
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == '"':
            in_string = not in_string
        elif in_string:
            continue
        elif token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidRequest(
                    f"the body nests deeper than {MAX_DEPTH} levels", code="too_deep"
                )
        elif token in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(f"the key {key[:80]!r} appears twice", code="duplicate_key")
            seen.add(key)
    return result


def _constant(text: str) -> NoReturn:
    raise InvalidRequest(f"{text} is not a JSON number", code="invalid_number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequest(f"the number {text[:40]} is too large", code="invalid_number")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(
            f"a number of {len(text)} digits is too large", code="invalid_number"
        ) from None


def _check_strings(value: Json) -> None:
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise InvalidRequest(
                "a string holds a lone surrogate escape, which is not text", code="invalid_string"
            )
    elif isinstance(value, list):
        for item in value:
            _check_strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_strings(key)
            _check_strings(item)
