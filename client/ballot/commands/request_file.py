"""Reads a request from a file or from standard input, losing nothing of it on the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ballot import strict_json
from ballot.commands.explain import Unusable

STDIN = "-"


def read_request(source: str) -> dict[str, Any]:
    """Read the request in the file `source`, or from standard input where that is `-`.

    Raises:
        Unusable: it cannot be read, is not JSON, or is no request; with line and column.
    """
    name = _name(source)
    body = parse_json(read_text(source), name)
    if not isinstance(body, dict) or not body.keys() & {"decision", "decisions", "questions"}:
        raise Unusable(
            f"{name} is no request",
            advice="give a JSON object with decision, decisions or questions",
        )
    return body


def read_text(source: str) -> str:
    """Return the text of the file `source`, or of standard input where that is `-`.

    Raises:
        Unusable: it cannot be read, or is not UTF-8.
    """
    name = _name(source)
    if source == STDIN and sys.stdin is None:
        raise Unusable(f"{name} is closed", advice="give a file, or a pipe")
    try:
        data = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unusable(f"cannot read {name}: {reason}", advice="check the path") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unusable(f"{name} is not UTF-8 (line {line})", advice="save it as UTF-8") from error


def parse_json(text: str, name: str) -> Any:
    """Parse `text` strictly: what the endpoint would refuse is not silently mended.

    Raises:
        Unusable: naming line and column, or the key or number that no JSON may have.
    """
    if not text.strip():
        raise Unusable(f"{name} is empty", advice="give it a request in JSON")
    try:
        return strict_json.loads(text)
    except json.JSONDecodeError as error:
        raise Unusable(
            f"{name} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}",
            advice="mend it there",
        ) from error
    except RecursionError as error:
        raise Unusable(f"{name} nests too deeply", advice="flatten it") from error
    except ValueError as error:
        raise Unusable(f"{name}: {error}", advice="mend it") from error


def _name(source: str) -> str:
    return "standard input" if source == STDIN else source
