"""What a calibration must hold, so that a wrong one is refused at synth and not by a container."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

KINDS = ("native", "choice", "noul", "score")
ANY_KIND = "any"
MOST_OPTIONS = 255
TEMPERATURES = (0.05, 20.0)
LOG_PRIORS = (-50.0, 50.0)
MOST_DEPTH = 64
_FIELDS = (
    *("version", "model_sha256", "prompt_version", "layout", "orders"),
    *("temperatures", "fitted"),
)
_SURROGATE = re.compile("[\ud800-\udfff]")

Faults = Iterator[str]


def parse(text: str) -> Any:
    """Parse the JSON of a calibration as strictly as the adapter does.

    Raises:
        ValueError: it is not JSON, or what parsers disagree about.
        RecursionError: it nests too deeply.
    """
    content = json.loads(
        text, object_pairs_hook=_object, parse_constant=_refuse_number, parse_float=_finite
    )
    _check_nested(content, MOST_DEPTH)
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _check_nested(value: Any, levels: int) -> None:
    if isinstance(value, str) and _SURROGATE.search(value):
        raise ValueError("a string holds half of a surrogate pair")
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise ValueError(f"it nests deeper than {MOST_DEPTH} levels")
    for item in [*value, *value.values()] if isinstance(value, dict) else value:
        _check_nested(item, levels - 1)


def faults(content: Mapping[str, Any]) -> Faults:
    """Yield what is wrong with a calibration's fields, whatever it is bound to."""
    yield from _fields(content, "it", _FIELDS, optional=("priors",))
    temperatures, priors = content.get("temperatures", []), content.get("priors", [])
    yield from _each(temperatures, "temperatures", _temperature)
    yield from _each(priors, "priors", _prior)
    if not (temperatures or priors):
        yield "has neither temperatures nor priors"
    if priors and content.get("orders") != 1:
        yield "has priors, which are for one order alone"
    if isinstance(priors, list):
        counts = [len(item["log_prior"]) for item in priors if not list(_prior(item, ""))]
        if len(set(counts)) < len(counts):
            yield "has the priors of a number of options twice"


def _temperature(item: Any, path: str) -> Faults:
    yield from _fields(item, path, ("kind", "options", "temperature"))
    if isinstance(item, Mapping):
        if item.get("kind") not in (*KINDS, ANY_KIND):
            yield f"{path}.kind must be one of {', '.join((*KINDS, ANY_KIND))}"
        if not _is_band(item.get("options")):
            yield f"{path}.options must be two whole numbers from 2 to {MOST_OPTIONS}, in order"
        if not _is_number(item.get("temperature"), *TEMPERATURES):
            lowest, highest = TEMPERATURES
            yield f"{path}.temperature must be a number from {lowest:g} to {highest:g}"


def _prior(item: Any, path: str) -> Faults:
    yield from _fields(item, path, ("options", "log_prior"), optional=("kinds",))
    if isinstance(item, Mapping):
        kinds, places = item.get("kinds", []), item.get("log_prior")
        if not isinstance(kinds, list) or any(kind not in KINDS for kind in kinds):
            yield f"{path}.kinds must be a list of {', '.join(KINDS)}"
        if not (
            isinstance(places, list)
            and 2 <= len(places) <= MOST_OPTIONS
            and item.get("options") == len(places)
            and all(_is_number(place, *LOG_PRIORS) for place in places)
        ):
            lowest, highest = LOG_PRIORS
            yield (
                f"{path}.log_prior must have one number from {lowest:g} to {highest:g} for each "
                "of its options"
            )


def _each(value: Any, path: str, check: Callable[[Any, str], Faults]) -> Faults:
    if not isinstance(value, list):
        yield f"{path} must be a list"
        return
    for index, item in enumerate(value):
        yield from check(item, f"{path}[{index}]")


def _fields(
    value: Any, path: str, keys: tuple[str, ...], *, optional: tuple[str, ...] = ()
) -> Faults:
    if not isinstance(value, Mapping):
        yield f"{path} must be an object"
        return
    for key in keys:
        if key not in value:
            yield f"{path} has no {key}"
    for key in value:
        if key not in (*keys, *optional):
            yield f"{path} has {json.dumps(key)[:80]}, which is not known"


def _is_band(value: Any) -> bool:
    match value:
        case [int(fewest), int(most)]:
            return 2 <= fewest <= most <= MOST_OPTIONS
    return False


def _is_number(value: Any, lowest: float, highest: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and lowest <= value <= highest
