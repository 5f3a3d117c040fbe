"""CloudWatch Logs' metric filters: log events that match a pattern become metrics as they arrive.

The pattern syntax is that of the User Guide, "Filter pattern syntax for metric filters": JSON
patterns such as `{ $.event = "request" && $.seconds > 1 }`, and terms. Patterns for space-delimited
events are not there.
"""

from __future__ import annotations

import fnmatch
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ministack.services import cloudwatch, cloudwatch_logs
from ministack.services.cloudformation import provisioners

from emulator.inside.services import Json, Response
from emulator.inside.validation import problems

Matcher = Callable[[Any], bool]
_MISSING = object()
_PATH = r'\$(?:\.[A-Za-z_][\w-]*|\[\d+\]|\["[^"]*"\])*'
_TOKEN = re.compile(
    rf"\s*(?:(?P<path>{_PATH})|(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<regex>%(?:[^%\\]|\\.)*%)"
    r"|(?P<sign>&&|\|\||!=|<=|>=|[=<>()])|(?P<word>[\w.*+:/@-]+))"
)
_STEP = re.compile(r'\.([A-Za-z_][\w-]*)|\[(\d+)\]|\["([^"]*)"\]')
_TERM = re.compile(r'([?-]?)(?:"((?:[^"\\]|\\.)*)"|%((?:[^%\\]|\\.)*)%|(\S+))')
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_put_log_events = cloudwatch_logs._put_log_events
_put_metric_filter = cloudwatch_logs._put_metric_filter


class PatternError(ValueError):
    """A filter pattern is not valid, or uses what is not emulated."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a log event's text matches a pattern.

    Raises:
        PatternError: the pattern is not valid.
    """
    text = pattern.strip()
    if text.startswith("{"):
        if not text.endswith("}"):
            raise PatternError(f"{pattern!r} does not end with }}")
        matches = _Parser(text[1:-1]).parse()
        return lambda message: _on_json(matches, message)
    if text.startswith("["):
        raise PatternError("patterns for space-delimited events are not emulated")
    return _terms(text)


def _on_json(matches: Matcher, message: str) -> bool:
    try:
        event = json.loads(message)
    except ValueError:
        return False
    return isinstance(event, dict) and matches(event)


def _terms(text: str) -> Callable[[str], bool]:
    found: dict[str, list[re.Pattern[str]]] = {"": [], "?": [], "-": []}
    for sign, phrase, regex, word in _TERM.findall(text):
        found[sign].append(re.compile(regex or re.escape(phrase or word)))

    def matches(message: str) -> bool:
        return (
            all(term.search(message) for term in found[""])
            and not any(term.search(message) for term in found["-"])
            and (not found["?"] or any(term.search(message) for term in found["?"]))
        )

    return matches


def look_up(event: Any, path: str) -> Any:
    """Return what lies at a path such as `$.a.b[0]` of an event; `_MISSING` where nothing does."""
    for name, index, quoted in _STEP.findall(path):
        if index:
            inside = isinstance(event, list) and int(index) < len(event)
            event = event[int(index)] if inside else _MISSING
        else:
            event = event.get(name or quoted, _MISSING) if isinstance(event, dict) else _MISSING
    return event


class _Parser:
    """A JSON pattern: comparisons joined by && and ||, in which && binds closer."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise PatternError(f"{text[at:].strip()!r} cannot be read in {text!r}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()

    def parse(self) -> Matcher:
        found = self._either()
        if self._tokens:
            raise PatternError(f"{self._tokens[0][1]!r} is not expected in {self._text!r}")
        return found

    def _take(self, *wanted: str) -> tuple[str, str]:
        """Return the next token, which is of one of the kinds, or is one of the words, `wanted`."""
        if not self._tokens:
            raise PatternError(f"{self._text!r} ends too early")
        kind, text = self._tokens.pop(0)
        if wanted and kind not in wanted and text not in wanted:
            raise PatternError(f"{text!r} is not expected in {self._text!r}")
        return kind, text

    def _next_is(self, text: str) -> bool:
        return bool(self._tokens) and self._tokens[0][1] == text

    def _either(self) -> Matcher:
        parts = [self._both()]
        while self._next_is("||"):
            self._take()
            parts.append(self._both())
        return lambda event: any(part(event) for part in parts)

    def _both(self) -> Matcher:
        parts = [self._one()]
        while self._next_is("&&"):
            self._take()
            parts.append(self._one())
        return lambda event: all(part(event) for part in parts)

    def _one(self) -> Matcher:
        if self._next_is("("):
            self._take()
            inner = self._either()
            self._take(")")
            return inner
        _, path = self._take("path")
        _, verb = self._take("sign", "IS", "NOT")
        if verb == "NOT":
            self._take("EXISTS")
            return lambda event: look_up(event, path) is _MISSING
        if verb == "IS":
            wanted: Any = {"NULL": None, "TRUE": True, "FALSE": False}[
                self._take("NULL", "TRUE", "FALSE")[1]
            ]
            return lambda event: look_up(event, path) is wanted
        kind, value = self._take("string", "word", "regex")
        return _comparison(path, verb, kind, value)


def _comparison(path: str, sign: str, kind: str, text: str) -> Matcher:
    if sign not in _ORDERS:
        raise PatternError(f"{sign!r} does not compare")
    if kind != "string" and (number := _number(text)) is not None:

        def by_number(event: Any) -> bool:
            found = look_up(event, path)
            is_number = isinstance(found, int | float) and not isinstance(found, bool)
            return is_number and _ORDERS[sign](found, number)

        return by_number
    if sign not in ("=", "!="):
        raise PatternError(f"{text!r} is not a number")
    if kind == "regex":
        regex = re.compile(text[1:-1])
        holds: Callable[[str], bool] = lambda found: regex.search(found) is not None  # noqa: E731
    else:
        wanted = json.loads(text) if kind == "string" else text
        shape = re.compile(fnmatch.translate(wanted.replace("[", "[[]").replace("?", "[?]")))
        holds = lambda found: shape.match(found) is not None  # noqa: E731

    def by_text(event: Any) -> bool:
        found = look_up(event, path)
        if found is _MISSING or found is None or isinstance(found, dict | list):
            return False
        shown = found if isinstance(found, str) else json.dumps(found)
        return holds(shown) is (sign == "=")

    return by_text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def values(transformation: Mapping[str, Any], message: str) -> tuple[float, dict[str, str]] | None:
    """Return the value and the dimensions of a matching event's metric; None when it has none."""
    try:
        event = json.loads(message)
    except ValueError:
        event = None

    def of(selector: str) -> Any:
        return look_up(event, selector) if selector.startswith("$") else selector

    value = of(str(transformation["metricValue"]))
    number = None if isinstance(value, bool) or not isinstance(value, int | float | str) else value
    found = _number(str(number)) if number is not None else None
    dimensions = {k: of(v) for k, v in (transformation.get("dimensions") or {}).items()}
    if found is None or any(not isinstance(v, str | int | float) for v in dimensions.values()):
        return None
    return found, {name: str(v) for name, v in dimensions.items()}


def _publish(group: str, messages: Sequence[str]) -> None:
    for (of_group, _), filtered in list(cloudwatch_logs._metric_filters.items()):
        if of_group != group:
            continue
        matches = compile_pattern(filtered["filterPattern"])
        matching = [message for message in messages if matches(message)]
        for transformation in filtered["metricTransformations"]:
            found = [values(transformation, message) for message in matching]
            known = [each for each in found if each is not None]
            if not matching and "defaultValue" in transformation:
                known = [(transformation["defaultValue"], {})]
            for value, dimensions in known:
                cloudwatch.record_metric(
                    transformation["metricNamespace"],
                    transformation["metricName"],
                    value,
                    transformation.get("unit", "None"),
                    dimensions,
                )


def _publishing_events(data: Json) -> Response:
    answer: Response = _put_log_events(data)
    events = data.get("logEvents")
    if answer[0] == 200 and events:
        _publish(data["logGroupName"], [event["message"] for event in events])
    return answer


def _checked_filter(data: Json) -> Response:
    found = problems("logs", "PutMetricFilter", data)
    try:
        compile_pattern(data.get("filterPattern", ""))
    except PatternError as error:
        found.append(f"Invalid filter pattern: {error}")
    for each in data.get("metricTransformations", ()):
        if each.get("dimensions") and "defaultValue" in each:
            found.append("a metric has dimensions or a default value, not both")
    if found:
        refusal: Response = cloudwatch_logs.error_response_json(
            "InvalidParameterException", "; ".join(found), 400
        )
        return refusal
    answer: Response = _put_metric_filter(data)
    return answer


def _refused_properties(inner: Callable[..., Json]) -> Callable[..., Json]:
    def payload(group: str, name: str, properties: Json) -> Json:
        known = {"FilterName", "FilterPattern", "LogGroupName", "MetricTransformations"}
        known |= {"ApplyOnTransformedLogs", "FieldSelectionCriteria", "EmitSystemFieldDimensions"}
        if unknown := sorted(set(properties) - known):
            raise ValueError(f"unknown property {', '.join(unknown)}")
        return inner(group, name, properties)

    return payload


def install() -> None:
    """Have ministack's log events pass the metric filters."""
    cloudwatch_logs._put_log_events = _publishing_events
    cloudwatch_logs._put_metric_filter = _checked_filter
    provisioners._cwlogs_metric_filter_payload = _refused_properties(
        provisioners._cwlogs_metric_filter_payload
    )
