"""When a scheduled action runs: the expressions that Application Auto Scaling reads.

Its user guide gives their forms: `at(yyyy-mm-ddThh:mm:ss)`, `rate(value unit)`, and `cron` with six
fields. What CloudFormation would only refuse in the middle of a deployment is found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

WORDS = (
    "a schedule: at(yyyy-mm-ddThh:mm:ss), rate(value unit) or "
    "cron(minutes hours day-of-month month day-of-week year)"
)

_EXPRESSION = re.compile(r"(?P<kind>at|rate|cron)\((?P<inside>[^()]+)\)")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)
_RATE = re.compile(r"(?P<value>[1-9]\d{0,5}) (?P<unit>minute|hour|day)(?P<plural>s?)", re.ASCII)
_ITEM = re.compile(
    r"(?:(?P<all>\*)|(?P<first>[A-Z0-9]+)(?:-(?P<last>[A-Z0-9]+))?)(?:/(?P<step>\d{1,4}))?",
    re.ASCII,
)
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True, kw_only=True)
class _Field:
    """A field of a cron expression: its range, its names from the lowest value on.

    `extras` is a pattern of what else it may be as a whole.
    """

    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()
    extras: str = "(?!)"

    def problem(self, text: str) -> str | None:
        """Return what is wrong with the field, or None."""
        if re.fullmatch(self.extras, text) or all(map(self._fits, text.split(","))):
            return None
        return f'has "{text}" for the {self.name}, {self._allowed()}'

    def _fits(self, item: str) -> bool:
        match = _ITEM.fullmatch(item)
        if match is None:
            return False
        step = match["step"]
        if step is not None and not 1 <= int(step) <= self.highest:
            return False
        if match["all"]:
            return True
        first = self._value(match["first"])
        last = first if match["last"] is None else self._value(match["last"])
        return first is not None and last is not None and first <= last

    def _value(self, text: str) -> int | None:
        if text in self.names:
            return self.lowest + self.names.index(text)
        if text.isdecimal() and self.lowest <= int(text) <= self.highest:
            return int(text)
        return None

    def _allowed(self) -> str:
        named = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"which go from {self.lowest} to {self.highest}{named}"


_DAY_OF_MONTH = _Field(
    name="day of the month", lowest=1, highest=31, extras=r"\?|L|LW|([1-9]|[12][0-9]|3[01])W"
)
_DAY_OF_WEEK = _Field(
    name="day of the week",
    lowest=1,
    highest=7,
    names=_DAYS,
    extras=rf"\?|L|([1-7]|{'|'.join(_DAYS)})(L|#[1-5])",
)
_FIELDS = (
    _Field(name="minutes", lowest=0, highest=59),
    _Field(name="hours", lowest=0, highest=23),
    _DAY_OF_MONTH,
    _Field(name="month", lowest=1, highest=12, names=_MONTHS),
    _DAY_OF_WEEK,
    _Field(name="year", lowest=1970, highest=2199),
)


def is_rate(schedule: str) -> bool:
    """Tell whether a schedule is a rate, which knows no time zone."""
    return schedule.startswith("rate(")


def schedule_problem(schedule: str) -> str | None:
    """Return what is wrong with a schedule, as a predicate, or None."""
    match = _EXPRESSION.fullmatch(schedule)
    if match is None:
        return f"must be {WORDS}"
    problems = {"at": _at_problem, "rate": _rate_problem, "cron": _cron_problem}
    return problems[match["kind"]](match["inside"])


def _at_problem(text: str) -> str | None:
    try:
        if _MOMENT.fullmatch(text):
            datetime.fromisoformat(text)
            return None
    except ValueError:
        pass
    return "must name a date and a time that there are, as in at(2027-01-31T08:00:00)"


def _rate_problem(text: str) -> str | None:
    match = _RATE.fullmatch(text)
    if match is None or (match["value"] == "1") == bool(match["plural"]):
        return "must be a rate such as rate(1 day) or rate(12 hours)"
    return None


def _cron_problem(text: str) -> str | None:
    fields = text.split(" ")
    if len(fields) != len(_FIELDS) or "" in fields:
        return f"must have six fields with one space between them: {WORDS}"
    return next(_field_problems(fields), None)


def _field_problems(fields: list[str]) -> Iterator[str]:
    for field, text in zip(_FIELDS, fields, strict=True):
        if problem := field.problem(text):
            yield problem
    days = [fields[_FIELDS.index(field)] for field in (_DAY_OF_MONTH, _DAY_OF_WEEK)]
    if days.count("?") != 1:
        yield "must have ? for exactly one of the day of the month and the day of the week"
