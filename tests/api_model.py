"""The API models of botocore, as an opinion from outside on what is valid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
import botocore.validate


@cache
def _service(name: str) -> Any:
    return botocore.session.get_session().get_service_model(name)


def sagemaker_enum(shape: str) -> list[str]:
    """Return the values of one of SageMaker's enumerations."""
    return list(_service("sagemaker").shape_for(shape).enum)


def violations(service: str, operation: str, parameters: Mapping[str, Any]) -> list[str]:
    """Return what the API would refuse: types, required and unknown names, enums, ranges."""
    shape = _service(service).operation_model(operation).input_shape
    report = botocore.validate.ParamValidator().validate(parameters, shape)
    types = [report.generate_report()] if report.has_errors() else []
    return [*types, *_constraints(parameters, shape, operation)]


def _constraints(value: Any, shape: Any, path: str) -> Iterator[str]:
    match shape.type_name:
        case "structure":
            for name, part in value.items():
                if name in shape.members:
                    yield from _constraints(part, shape.members[name], f"{path}.{name}")
                else:
                    yield f"{path}.{name} is unknown"
        case "list":
            yield from _range(len(value), shape, path)
            for index, part in enumerate(value):
                yield from _constraints(part, shape.member, f"{path}[{index}]")
        case "map":
            for name, part in value.items():
                yield from _constraints(part, shape.value, f"{path}[{name}]")
        case "string":
            yield from _text(value, shape, path)
        case "integer" | "long" | "float" | "double":
            yield from _range(value, shape, path)


def _text(value: str, shape: Any, path: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        yield f"{path}: {value} is not one of {shape.enum}"
    pattern = shape.metadata.get("pattern")
    if pattern and not _matches(pattern, value):
        yield f"{path}: {value} does not match {pattern}"
    yield from _range(len(value), shape, path)


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:
        return True  # a dialect that Python lacks: it only rules out control characters


def _range(value: float, shape: Any, path: str) -> Iterator[str]:
    lowest, highest = shape.metadata.get("min"), shape.metadata.get("max")
    if lowest is not None and value < lowest:
        yield f"{path}: {value} is less than {lowest}"
    if highest is not None and value > highest:
        yield f"{path}: {value} is more than {highest}"
