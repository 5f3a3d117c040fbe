"""CloudWatch Logs' filter patterns for JSON, as far as the stacks use them.

Source: "Filter pattern syntax for metric filters", CloudWatch Logs user guide: comparisons of
`$.field` with quoted texts (`=`, `!=`) and numbers (all operators), `&&` before `||`, parentheses.
A comparison with a field that is not there, or is of another type, does not match.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<sign>&&|\|\||[(){}])|(?P<operator>[<>]=?|!?=)|(?P<field>\$\.\w+)"
    r"|(?P<text>\"[^\"]*\")|(?P<number>-?\d+(?:\.\d+)?))"
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Line = dict[str, Any]
Condition = Callable[[Line], bool]


class FilterPattern:
    """A parsed pattern.

    Raises:
        ValueError: it is none, of this part of the syntax.
    """

    def __init__(self, pattern: str) -> None:
        self._tokens = _tokens(pattern)
        self._take("{")
        self._condition = self._any_of()
        self._take("}")
        if self._tokens:
            raise ValueError(f"behind the pattern: {self._tokens}")

    def matches(self, line: str) -> bool:
        """Tell whether a log line, which may be no JSON, fits the pattern."""
        try:
            found = json.loads(line)
        except ValueError:
            return False
        return isinstance(found, dict) and self._condition(found)

    def _any_of(self) -> Condition:
        conditions = [self._all_of()]
        while self._takes("||"):
            conditions.append(self._all_of())
        return lambda line: any(condition(line) for condition in conditions)

    def _all_of(self) -> Condition:
        conditions = [self._one()]
        while self._takes("&&"):
            conditions.append(self._one())
        return lambda line: all(condition(line) for condition in conditions)

    def _one(self) -> Condition:
        if self._takes("("):
            inner = self._any_of()
            self._take(")")
            return inner
        field = self._tokens.pop(0)
        sign = self._tokens.pop(0)
        value = json.loads(self._tokens.pop(0))
        if not field.startswith("$.") or sign not in _COMPARISONS:
            raise ValueError(f"no comparison: {field} {sign}")
        if isinstance(value, str) and sign not in ("=", "!="):
            raise ValueError(f"{sign} is for numbers")
        return _comparison(field.removeprefix("$."), _COMPARISONS[sign], value)

    def _takes(self, token: str) -> bool:
        if self._tokens[:1] != [token]:
            return False
        self._tokens.pop(0)
        return True

    def _take(self, token: str) -> None:
        if not self._takes(token):
            raise ValueError(f"{token} is missing before {self._tokens}")


def _tokens(pattern: str) -> list[str]:
    tokens, position = [], 0
    text = pattern.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"not understood: {text[position:]}")
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def _comparison(field: str, compare: Callable[[Any, Any], bool], value: Any) -> Condition:
    wanted = str if isinstance(value, str) else (int, float)

    def condition(line: Line) -> bool:
        found = line.get(field)
        comparable = isinstance(found, wanted) and not isinstance(found, bool)
        return comparable and compare(found, value)

    return condition
