"""Reads JSON strictly: what an endpoint would refuse is not silently mended."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def loads(text: str) -> Any:
    """Parse `text`; an object has each key once, and a number is finite.

    Raises:
        json.JSONDecodeError: it is not JSON, with line and column.
        ValueError: naming the key or the number that no JSON may have.
        RecursionError: it nests too deeply.
    """
    return json.loads(
        text, object_pairs_hook=_unique_keys, parse_constant=_refuse_number, parse_float=_finite
    )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object has the key {json.dumps(key)} twice")
        found[key] = value
    return found


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
