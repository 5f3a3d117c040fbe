"""Checks parameters against botocore's model of an AWS API, as the service itself would."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import botocore.exceptions
import botocore.session
import botocore.validate


@functools.cache
def _session() -> Any:
    return botocore.session.get_session()


@functools.cache
def service_model(service: str) -> Any:
    """Return botocore's model of a service."""
    return _session().get_service_model(service)


def input_members(service: str, operation: str) -> frozenset[str]:
    """Return the names of an operation's parameters."""
    return frozenset(service_model(service).operation_model(operation).input_shape.members)


def problems(service: str, operation: str, parameters: dict[str, Any]) -> list[str]:
    """Return what is wrong with an operation's parameters; nothing for an unknown operation.

    botocore checks what is required and the types. Names, enumerations, patterns, lengths and
    ranges it leaves to the service, so they are checked here.
    """
    try:
        shape = service_model(service).operation_model(operation).input_shape
    except botocore.exceptions.UnknownServiceError:
        return []
    except botocore.model.OperationNotFoundError:
        return []
    if shape is None:
        return []
    report = botocore.validate.ParamValidator().validate(parameters, shape)
    if report.has_errors():
        return [line for line in report.generate_report().split("\n") if line]
    return list(_constraints(parameters, shape, path=operation))


def _constraints(value: Any, shape: Any, *, path: str) -> Iterator[str]:
    kind, limits = shape.type_name, shape.metadata
    if kind == "structure":
        for name, member in value.items():
            if name in shape.members:
                yield from _constraints(member, shape.members[name], path=f"{path}.{name}")
            else:
                yield f"unknown parameter {path}.{name}"
    elif kind == "list":
        yield from _range(len(value), limits, what=f"length of {path}")
        for index, item in enumerate(value):
            yield from _constraints(item, shape.member, path=f"{path}[{index}]")
    elif kind == "map":
        yield from _range(len(value), limits, what=f"length of {path}")
        for name, item in value.items():
            yield from _constraints(name, shape.key, path=f"{path} key {name!r}")
            yield from _constraints(item, shape.value, path=f"{path}[{name!r}]")
    elif kind == "string":
        yield from _string(value, shape, path=path)
    elif kind in ("integer", "long", "float", "double"):
        yield from _range(value, limits, what=path)


def _string(value: str, shape: Any, *, path: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        yield f"{path}: {value!r} is not one of {', '.join(shape.enum)}"
    yield from _range(len(value), shape.metadata, what=f"length of {path}")
    pattern = shape.metadata.get("pattern")
    if pattern and (compiled := _compiled(pattern)) and not compiled.fullmatch(value):
        yield f"{path}: {value!r} does not match {pattern}"


def _range(value: float, limits: dict[str, Any], *, what: str) -> Iterator[str]:
    low, high = limits.get("min"), limits.get("max")
    if (low is not None and value < low) or (high is not None and value > high):
        yield f"{what}: {value} is not within {low} to {high}"


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:  # Java's dialect knows classes such as \p{L} that Python's does not
        return None
