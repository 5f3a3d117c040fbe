"""Reads JSON settings and collects every problem, each with its path, value and what is allowed."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class SettingsError(Exception):
    """Settings that cannot be used; the text is for whoever wrote them, one problem a line."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """What a text must look like: a pattern for the machine, and words for the reader."""

    pattern: str
    words: str

    def fits(self, value: object) -> bool:
        """Tell whether the value is a text of this format."""
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


class Problems:
    """The problems found so far."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, path: str, text: str) -> None:
        """Note one problem of the setting at `path`."""
        self._lines.append(f"{path}: {text}")

    def raise_any(self, what: str) -> None:
        """Raise one `SettingsError` with all problems, if there are any."""
        if self._lines:
            count = "1 problem" if len(self._lines) == 1 else f"{len(self._lines)} problems"
            raise SettingsError("\n  ".join([f"{what} has {count}:", *self._lines]))


class Section:
    """A JSON object being read.

    Every reader notes a problem instead of raising, and then returns its default, so that one run
    finds all of them. What was read is only to be used once `Problems.raise_any` has passed.
    """

    def __init__(self, value: object, *, path: str, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self._asked: list[str] = []
        self._values: Mapping[str, Any] = {}
        if isinstance(value, Mapping):
            self._values = value
        else:
            self.problems.add(path, f"{shown(value)} must be an object")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def problem(self, key: str, text: str) -> None:
        """Note a problem of one key."""
        self.problems.add(f"{self.path}.{key}", text)

    def refuse(self, key: str, rule: str) -> None:
        """Note that a key's value breaks a rule."""
        self.problem(key, f"{shown(self._values.get(key))} {rule}")

    def refuse_elsewhere(
        self, key: str, arn: str, what: str, *, account: str | None, region: str | None
    ) -> None:
        """Note that an ARN is not of an account and a Region, where those are not None."""
        _, _, _, its_region, its_account, _ = arn.split(":")
        for part, wanted, found in (
            ("Region", region, its_region),
            ("account", account, its_account),
        ):
            if wanted and found != wanted:
                self.refuse(key, f"must be {what} of the environment's {part}, {wanted}")

    def text(self, key: str, form: Format, *, default: str = "", required: bool = False) -> str:
        """Read a text of a format."""
        if not self._has(key, form.words, required=required):
            return default
        value = self._values[key]
        if not form.fits(value):
            self.refuse(key, f"must be {form.words}")
            return default
        return str(value)

    def known(self, key: str) -> None:
        """Note that a key is a setting here, without reading it."""
        self._asked.append(key)

    def is_false(self, key: str) -> bool:
        """Tell whether a key that may be false or something else is false."""
        self._asked.append(key)
        return self._values.get(key) is False

    def is_text(self, key: str, text: str) -> bool:
        """Tell whether a key is this very text, and may be something else."""
        self._asked.append(key)
        return self._values.get(key) == text

    def choice(
        self, key: str, choices: Collection[str], *, default: str = "", required: bool = False
    ) -> str:
        """Read one of several words; an unknown one is answered with the nearest."""
        words = f"one of {', '.join(choices)}"
        if not self._has(key, words, required=required):
            return default
        value = self._values[key]
        if value not in list(choices):
            self.refuse(key, f"must be {words}{nearest(value, choices)}")
            return default
        return str(value)

    def integer(self, key: str, lowest: int, highest: int, *, default: int) -> int:
        """Read a whole number within a range."""
        self._asked.append(key)
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            self.refuse(key, f"must be a whole number from {lowest} to {highest}")
            return default
        return value

    def optional_integer(self, key: str, lowest: int, highest: int) -> int | None:
        """Read a whole number within a range, or None when it is absent."""
        if key in self._values:
            return self.integer(key, lowest, highest, default=lowest)
        self.known(key)
        return None

    def number(self, key: str, choices: Sequence[int], *, default: int) -> int:
        """Read one of several whole numbers."""
        self._asked.append(key)
        value = self._values.get(key, default)
        if isinstance(value, bool) or value not in choices:
            self.refuse(key, f"must be one of {', '.join(map(str, choices))}")
            return default
        return int(value)

    def decimal(self, key: str, lowest: float, highest: float, *, default: float) -> float:
        """Read a number within a range."""
        self._asked.append(key)
        value = self._values.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not lowest <= value <= highest:
            self.refuse(key, f"must be a number from {lowest:,} to {highest:,}")
            return default
        return float(value)

    def optional_decimal(self, key: str, lowest: float, highest: float) -> float | None:
        """Read a number within a range, or None when it is absent."""
        if key in self._values:
            return self.decimal(key, lowest, highest, default=lowest)
        self.known(key)
        return None

    def flag(self, key: str, *, default: bool) -> bool:
        """Read true or false."""
        self._asked.append(key)
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "must be true or false")
            return default
        return value

    def texts(
        self, key: str, form: Format, *, most: int, required: bool = False
    ) -> tuple[str, ...]:
        """Read a list of 1 to `most` different texts of a format."""
        words = f"a list of 1 to {most}, each {form.words}"
        if not self._has(key, words, required=required):
            return ()
        values = self._values[key]
        if not isinstance(values, list) or not 1 <= len(values) <= most:
            self.refuse(key, f"must be {words}")
            return ()
        for index, value in enumerate(values):
            if not form.fits(value):
                self.problem(f"{key}[{index}]", f"{shown(value)} must be {form.words}")
            elif value in values[:index]:
                self.problem(f"{key}[{index}]", f"{shown(value)} is there twice")
        return tuple(str(value) for value in values)

    def tags(self, key: str) -> dict[str, str]:
        """Read resource tags."""
        section = self.section(key)
        return (
            {}
            if section is None
            else {name: section.text(name, TAG_VALUE) for name in section.names(TAG_KEY, most=40)}
        )

    def section(self, key: str, *, required: bool = False) -> Section | None:
        """Read a nested object, or return None when it is absent."""
        if not self._has(key, "an object", required=required):
            return None
        return Section(self._values[key], path=f"{self.path}.{key}", problems=self.problems)

    def objects(self, key: str, *, most: int) -> list[Section]:
        """Read a list of up to `most` nested objects; none when it is absent."""
        if not self._has(key, "a list of objects", required=False):
            return []
        values = self._values[key]
        if not isinstance(values, list) or len(values) > most:
            self.refuse(key, f"must be a list of up to {most} objects")
            return []
        sections = [
            Section(value, path=f"{self.path}.{key}[{index}]", problems=self.problems)
            for index, value in enumerate(values)
        ]
        return [
            section
            for section, value in zip(sections, values, strict=True)
            if isinstance(value, Mapping)
        ]

    def sections(
        self, key: str, names: Format, *, required: bool = False
    ) -> Iterator[tuple[str, Section]]:
        """Read a nested object of objects under names that the writer chose."""
        parent = self.object(key, required=required)
        if parent is None:
            return
        if required and parent._values == {}:
            self.refuse(key, "must have at least one entry")
        for name in parent.names(names, most=50):
            if section := parent.object(name):
                yield name, section

    def object(
        self, key: str, *, required: bool = False, short_for: str | None = None
    ) -> Section | None:
        """Read a nested object, or return None when it is absent or no object.

        A text stands for the object that has it under the key `short_for`, and nothing else.
        """
        value = self._values.get(key)
        if short_for is not None and isinstance(value, str):
            self.known(key)
            return Section({short_for: value}, path=f"{self.path}.{key}", problems=self.problems)
        section = self.section(key, required=required)
        return section if isinstance(value, Mapping) else None

    def names(self, form: Format, *, most: int) -> list[str]:
        """Return the keys of an object whose keys the writer chose; bad ones are left out."""
        self._asked.extend(self._values)
        if not len(self._values) <= most:
            self.problems.add(self.path, f"has {len(self._values)} entries; at most {most}")
        for name in self._values:
            if not form.fits(name):
                self.problems.add(self.path, f"{shown(name)} must be {form.words}")
        return [name for name in self._values if form.fits(name)]

    def one_of(self, *keys: str) -> str | None:
        """Return which of the keys is there; note a problem unless exactly one is."""
        there = [key for key in keys if key in self._values]
        if len(there) == 1:
            return there[0]
        found = "both are there" if there else "neither is"
        self.problems.add(self.path, f"needs exactly one of {' and '.join(keys)}; {found}")
        return None

    def finish(self) -> None:
        """Note every key that nothing has asked for."""
        known = list(dict.fromkeys(self._asked))
        for key in self._values:
            if key not in known:
                allowed = ", ".join(sorted(known))
                self.problem(
                    key, f"is not a setting{nearest(key, known)}; the settings here: {allowed}"
                )

    def _has(self, key: str, words: str, *, required: bool) -> bool:
        self._asked.append(key)
        if key in self._values:
            return True
        if required:
            self.problem(key, f"is missing; must be {words}")
        return False


TAG_KEY = Format(
    pattern=r"(?!aws:|ballot:)[\w .:/=+@-]{1,128}",
    words="a tag key: 1 to 128 letters, digits, spaces or .:/=+@_-, not starting with aws: or "
    "ballot:",
)
TAG_VALUE = Format(
    pattern=r"[\w .:/=+@-]{0,256}",
    words="a tag value: up to 256 letters, digits, spaces or .:/=+@_-",
)


def shown(value: object) -> str:
    """Return a value as JSON, cut to a length that fits a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


def nearest(word: object, known: Collection[str]) -> str:
    """Return `; did you mean X?` when a known word is near, else nothing."""
    close = difflib.get_close_matches(str(word), sorted(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
