"""JSON on the wire: request bodies out, and answers in, read field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ballot.errors import InvalidAnswer, InvalidRequest

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def encode(value: Json) -> bytes:
    """Return `value` as compact JSON in UTF-8; keys keep their order.

    Raises:
        InvalidRequest: JSON cannot hold the value; the code is the endpoint's for the same fault.
    """
    try:
        text = json.dumps(
            value,
            ensure_ascii=False,
            allow_nan=False,
            check_circular=False,  # what holds itself nests too deep
            separators=(",", ":"),
            default=_plain,
        )
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "the request holds half of a surrogate pair, which is not a character",
            code="invalid_string",
        ) from error
    except RecursionError as error:
        raise InvalidRequest("the request nests too deep", code="too_deep") from error
    except TypeError as error:
        raise InvalidRequest(f"the request is not JSON: {error}", code="wrong_type") from error
    except ValueError as error:
        raise InvalidRequest(f"the request is not JSON: {error}", code="invalid_number") from error


def _plain(value: object) -> Any:
    """Return a mapping or sequence of another type as the one that `json` writes."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return list(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def decode(body: bytes) -> Fields:
    """Return the object that the body of a successful answer is.

    Raises:
        InvalidAnswer: the body is not one JSON object.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer("the answer is not JSON", code="invalid_answer") from error
    return Fields.of(value, "the answer")


@dataclass(frozen=True)
class Fields:
    """An object of an answer, with its path; a field that is not as declared is InvalidAnswer."""

    values: Mapping[str, Any]
    path: str

    @classmethod
    def of(cls, value: object, path: str) -> Fields:
        """Return `value`, which must be an object."""
        if not isinstance(value, dict):
            raise _invalid(path, "an object")
        return cls(value, path)

    def text(self, name: str) -> str:
        """Return a string."""
        return _text(self.values.get(name), self._path(name))

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None where there is null or nothing."""
        value = self.values.get(name)
        return None if value is None else _text(value, self._path(name))

    def whole(self, name: str) -> int:
        """Return a whole number."""
        return _whole(self.values.get(name), self._path(name))

    def number(self, name: str) -> float:
        """Return a finite number."""
        return _number(self.values.get(name), self._path(name))

    def truth(self, name: str) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise _invalid(self._path(name), "true or false")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an array of strings."""
        return tuple(_text(item, path) for item, path in self._items(name))

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return an array of whole numbers."""
        return tuple(_whole(item, path) for item, path in self._items(name))

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return an array of finite numbers."""
        return tuple(_number(item, path) for item, path in self._items(name))

    def number_map(self, name: str) -> dict[str, float]:
        """Return an object of finite numbers."""
        inner = self.object(name)
        return {key: inner.number(key) for key in inner.values}

    def object(self, name: str) -> Fields:
        """Return an object."""
        return Fields.of(self.values.get(name), self._path(name))

    def objects(self, name: str) -> tuple[Fields, ...]:
        """Return an array of objects."""
        return tuple(Fields.of(item, path) for item, path in self._items(name))

    def _items(self, name: str) -> list[tuple[Any, str]]:
        value, path = self.values.get(name), self._path(name)
        if not isinstance(value, list):
            raise _invalid(path, "an array")
        return [(item, f"{path}[{index}]") for index, item in enumerate(value)]

    def _path(self, name: str) -> str:
        return f"{self.path}.{name}"


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _invalid(path, "a string")
    return value


def _whole(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(path, "a whole number")
    return value


def _number(value: object, path: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _invalid(path, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _invalid(path, "a finite number")
    return number


def _invalid(path: str, expected: str) -> InvalidAnswer:
    return InvalidAnswer(f"{path} is not {expected}", code="invalid_answer")
