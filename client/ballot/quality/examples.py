"""Labelled data: decisions of which the right option is known.

A file holds JSON, an example a line, or is a CSV file with another that says what its columns mean;
docs/evaluate.md describes both. Every bad line is found, not just the first.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ballot import strict_json, wire
from ballot.decision import Decision, Option
from ballot.errors import InvalidRequest

NATIVE, CHOICE, NOUL, SCORE = "native", "choice", "noul", "score"
# What the adapter asks where a System One question has no instructions; docs/system-one.md.
_DEFAULT_QUESTION = "Which option fits the evidence best?"
_MIN_OPTIONS = 2
_MOST_SHOWN = 20

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Example:
    """A decision, and the id of the option that is right.

    `kind` is `native`, or the type of the System One question that it comes from: `choice`, `noul`
    or `score`. `family` and `group` are names that figures are told apart by, where the data has
    them; blank ones are none.
    """

    id: str
    decision: Decision
    expected: str
    kind: str
    family: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Data:
    """A file's examples, in its order; the SHA-256 are of the files' bytes."""

    name: str
    sha256: str
    mapping_sha256: str | None
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class BadLine:
    """What is wrong with one line of a file, counted from 1."""

    line: int
    message: str


class DataError(InvalidRequest):
    """The data cannot be used; `bad_lines` has all that is wrong, in the order of the lines."""

    def __init__(self, name: str, bad_lines: Iterable[BadLine]) -> None:
        self.bad_lines = tuple(bad_lines)
        shown = [f"line {bad.line}: {bad.message}" for bad in self.bad_lines[:_MOST_SHOWN]]
        left = len(self.bad_lines) - len(shown)
        more = [f"and {left} more"] if left else []
        super().__init__(f"{name}: {'; '.join(shown + more)}", code="bad_data")


class UnusableData(InvalidRequest):
    """The data, or the mapping of its columns, cannot be used as a whole."""


def read_data(path: Path, mapping: Path | None = None) -> Data:
    """Return the examples of a file; `mapping` says what the columns of a CSV file mean.

    Raises:
        DataError: lines of it are wrong.
        UnusableData: it cannot be read, is not UTF-8, is empty, or the mapping does not fit.
    """
    content = _read(path)
    if mapping is not None:
        return parse_csv(path.name, content, _read(mapping), mapping_name=mapping.name)
    if path.suffix.lower() == ".csv":
        raise UnusableData(
            f"{path.name} is a CSV file: say what its columns mean, with --map", code="bad_data"
        )
    return parse_jsonl(path.name, content)


def parse_jsonl(name: str, content: bytes) -> Data:
    """Return the examples of a file that has one a line, in the native form or in JevBench's.

    Raises:
        DataError: lines of it are wrong.
        UnusableData: it is not UTF-8, or empty.
    """
    lines = (
        (number, line.rstrip("\r"))
        for number, line in enumerate(_text(name, content).split("\n"), start=1)
    )
    written = ((number, line) for number, line in lines if line.strip())
    examples = _parse_all(name, written, lambda line: _example(_object(line)))
    return Data(name, _sha256(content), None, examples)


def parse_csv(name: str, content: bytes, mapping: bytes, *, mapping_name: str) -> Data:
    """Return the examples of a CSV file.

    Raises:
        DataError: lines of it are wrong.
        UnusableData: it is not UTF-8, or empty, or the mapping does not fit.
    """
    columns = _mapping(mapping_name, mapping)
    rows = _csv_rows(name, _text(name, content))
    header = next(rows, (0, []))[1]
    columns.check_fits(name, header)
    numbered = ((line, (number, cells)) for number, (line, cells) in enumerate(rows, start=1))
    examples = _parse_all(
        name, numbered, lambda row: columns.example(row[0], _by_column(header, row[1]))
    )
    return Data(name, _sha256(content), _sha256(mapping), examples)


def _parse_all(
    name: str, items: Iterable[tuple[int, Parsed]], parse: Callable[[Parsed], Example]
) -> tuple[Example, ...]:
    """Parse every item, each with the number of its line."""
    examples: list[Example] = []
    bad_lines: list[BadLine] = []
    lines_by_id: dict[str, int] = {}
    for line, item in items:
        try:
            example = parse(item)
            _check(example)
        except InvalidRequest as error:
            bad_lines.append(BadLine(line, error.message))
            continue
        first = lines_by_id.setdefault(example.id, line)
        if first != line:
            bad_lines.append(BadLine(line, f"the id {example.id!r} is that of line {first} too"))
        examples.append(example)
    if bad_lines:
        raise DataError(name, bad_lines)
    if not examples:
        raise UnusableData(f"{name} has no examples", code="bad_data")
    return tuple(examples)


def _check(example: Example) -> None:
    """Refuse what no endpoint takes, and a label that is no option."""
    options = [option.id for option in example.decision.options]
    if len(options) < _MIN_OPTIONS:
        raise _wrong(f"a decision needs at least {_MIN_OPTIONS} options, not {len(options)}")
    twice = next((option for option in options if options.count(option) > 1), None)
    if twice is not None:
        raise _wrong(f"two options have the id {twice!r}")
    if example.expected not in options:
        raise _wrong(f"expected is {example.expected!r}, which is none of the options {options}")
    for what, text in _texts(example):
        if not text.strip():
            raise _wrong(f"{what} is empty")
    wire.encode(example.decision.as_json())


def _texts(example: Example) -> Iterator[tuple[str, str]]:
    yield "the id", example.id
    yield "the question", example.decision.question
    for option in example.decision.options:
        yield "an option's id", option.id
        yield f"the description of option {option.id!r}", option.description


def _object(line: str) -> dict[str, Any]:
    try:
        value = strict_json.loads(line)
    except json.JSONDecodeError as error:
        raise _wrong(f"this is not JSON: column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise _wrong("this nests too deeply") from error
    except ValueError as error:
        raise _wrong(str(error)) from error
    if not isinstance(value, dict):
        raise _wrong("this is not a JSON object")
    return value


def _example(fields: dict[str, Any]) -> Example:
    if "decision" in fields:
        return _native(fields)
    if "question" in fields:
        return _jevbench(fields)
    raise _wrong("there is neither a decision (native) nor a question (JevBench)")


def _native(fields: dict[str, Any]) -> Example:
    _only(fields, ("decision", "expected", "family", "group"))
    decision = Decision.from_json(fields["decision"])
    return Example(
        decision.id, decision, _string(fields, "expected"), NATIVE, **_family_and_group(fields)
    )


def _jevbench(fields: dict[str, Any]) -> Example:
    """Read a task; a question becomes the decision that the adapter makes of it."""
    question = fields["question"]
    if not isinstance(question, dict):
        raise _wrong("question must be an object")
    kind = _string(question, "type", "question.type")
    if kind not in _OPTIONS:
        raise _wrong(f"question.type must be one of: {', '.join(_OPTIONS)}")
    options = _OPTIONS[kind](question.get("criteria"))
    _check_labels(fields.get("labels"), options)
    name = _string(fields, "id")
    if "state" not in fields:
        raise _wrong("state is missing")
    text = _rendered(question.get("instructions"), "question.instructions") or _DEFAULT_QUESTION
    expected = fields.get("expected")
    if kind == SCORE and isinstance(expected, int) and not isinstance(expected, bool):
        fields = {**fields, "expected": str(expected)}
    return Example(
        name,
        Decision(name, fields["state"], text, options),
        _string(fields, "expected"),
        kind,
        **_family_and_group(fields),
    )


def _noul(criteria: object) -> tuple[Option, ...]:
    sides = {} if criteria is None else criteria
    if not isinstance(sides, dict) or not sides.keys() <= {"true", "false"}:
        raise _wrong("question.criteria must be an object with true, false, or both")

    def side(word: str, key: str) -> str:
        described = _rendered(sides.get(key), f"question.criteria.{key}")
        return word if described is None else f"{word}: {described}"

    return Option("yes", side("Yes", "true")), Option("no", side("No", "false"))


def _choice(criteria: object) -> tuple[Option, ...]:
    if not isinstance(criteria, dict):
        raise _wrong("question.criteria must be an object")
    return tuple(
        Option(name, _rendered(text, f"question.criteria.{name}") or name)
        for name, text in criteria.items()
    )


def _score(criteria: object) -> tuple[Option, ...]:
    if not isinstance(criteria, list):
        raise _wrong("question.criteria must be an array")
    return tuple(
        Option(str(level), _rendered(text, f"question.criteria[{level}]") or "")
        for level, text in enumerate(criteria)
    )


_OPTIONS: dict[str, Callable[[object], tuple[Option, ...]]] = {
    CHOICE: _choice,
    NOUL: _noul,
    SCORE: _score,
}


def _check_labels(labels: object, options: tuple[Option, ...]) -> None:
    names = sorted(option.id for option in options)
    if not isinstance(labels, list) or sorted(map(str, labels)) != names:
        raise _wrong(f"labels must be, in any order: {', '.join(names)}")


def _rendered(value: object, what: str) -> str | None:
    """Return instructions or a description as the adapter reads them; None if they say nothing."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        return value
    if not isinstance(value, (dict, list)):
        raise _wrong(f"{what} must be a string, an object or an array")
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class _Columns:
    """What the columns of a CSV file mean; question and options are the same for every row.

    `state` is one column, whose cell is the state, or several, which make an object.
    """

    state: str | tuple[str, ...]
    expected: str
    id: str | None
    family: str | None
    group: str | None
    question: str
    options: tuple[Option, ...]

    def check_fits(self, name: str, header: list[str]) -> None:
        """Refuse a header that lacks a column, or has one of them twice."""
        states = (self.state,) if isinstance(self.state, str) else self.state
        for column in (*states, self.expected, self.id, self.family, self.group):
            if column is not None and header.count(column) != 1:
                count = "several columns" if column in header else "no column"
                raise UnusableData(
                    f"{name} has {count} {column!r}; its columns are: {', '.join(header)}",
                    code="bad_mapping",
                )

    def example(self, number: int, cells: Mapping[str, str]) -> Example:
        """Return the example of row `number`; without a column for it, that is its id."""
        name = str(number) if self.id is None else cells[self.id]
        state: wire.Json = (
            cells[self.state]
            if isinstance(self.state, str)
            else {column: cells[column] for column in self.state}
        )
        return Example(
            name,
            Decision(name, state, self.question, self.options),
            cells[self.expected],
            NATIVE,
            family=_name(cells, self.family),
            group=_name(cells, self.group),
        )


def _mapping(name: str, content: bytes) -> _Columns:
    try:
        fields = _object(_text(name, content))
        _only(fields, ("columns", "question", "options"))
        columns = fields.get("columns")
        if not isinstance(columns, dict):
            raise _wrong("columns must be an object")
        _only(columns, ("state", "expected", "id", "family", "group"))
        options = fields.get("options")
        if not isinstance(options, list):
            raise _wrong("options must be an array")
        return _Columns(
            state=_state_columns(columns.get("state")),
            expected=_string(columns, "expected", "columns.expected"),
            id=_optional_string(columns, "id", "columns.id"),
            family=_optional_string(columns, "family", "columns.family"),
            group=_optional_string(columns, "group", "columns.group"),
            question=_string(fields, "question"),
            options=tuple(
                Option.from_json(option, f"options[{index}]")
                for index, option in enumerate(options)
            ),
        )
    except UnusableData:
        raise
    except InvalidRequest as error:
        raise UnusableData(f"{name}: {error.message}", code="bad_mapping") from error


def _state_columns(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise _wrong("columns.state must be the name of a column, or an array of names")
    return tuple(value)


def _csv_rows(name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not empty, with the number of the line on which it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(name, [BadLine(line, f"this is not CSV: {error}")]) from error


def _by_column(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise _wrong(f"there are {len(cells)} cells; the header has {len(header)} columns")
    return dict(zip(header, cells, strict=True))


def _family_and_group(fields: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: _unless_blank(_optional_string(fields, name)) for name in ("family", "group")}


def _name(cells: Mapping[str, str], column: str | None) -> str | None:
    return None if column is None else _unless_blank(cells[column])


def _unless_blank(name: str | None) -> str | None:
    """Return a name; examples that have a blank one have nothing in common."""
    return None if name is None or not name.strip() else name


def _optional_string(fields: Mapping[str, Any], name: str, path: str | None = None) -> str | None:
    return None if fields.get(name) is None else _string(fields, name, path)


def _string(fields: Mapping[str, Any], name: str, path: str | None = None) -> str:
    if name not in fields:
        raise _wrong(f"{path or name} is missing")
    value = fields[name]
    if not isinstance(value, str):
        raise _wrong(f"{path or name} must be a string")
    return value


def _only(fields: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    unknown = next((key for key in fields if key not in allowed), None)
    if unknown is not None:
        raise _wrong(f"{unknown} is not a field here; the fields are: {', '.join(allowed)}")


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="bad_data")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnusableData(f"cannot read {path}: {reason}", code="bad_data") from error


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnusableData(f"{name} is not UTF-8 (line {line})", code="bad_data") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
