"""What CloudFormation asks for, read out of its event and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class BadRequest(Exception):
    """The custom resource's properties are not what the stacks write."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An endpoint, and the configuration that it is to run."""

    endpoint: str
    config: str

    @property
    def physical_id(self) -> str:
        """The resource's id, which says what was found right: another one means a new look."""
        return f"{self.endpoint}/{self.config}"


def wanted(event: Mapping[str, Any]) -> Wanted:
    """Return what the properties ask for.

    Raises:
        BadRequest: a property is missing.
    """
    properties = event["ResourceProperties"]
    return Wanted(
        endpoint=_text(properties, "EndpointName"), config=_text(properties, "EndpointConfigName")
    )


def _text(properties: Mapping[str, Any], name: str) -> str:
    value = properties.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"the property {name} is missing")
    return value
