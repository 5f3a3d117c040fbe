"""The few forms of JSON Schema that `/openapi.json` is made of."""

from __future__ import annotations

from typing import Any

# What an error in a line of JSON Lines has beside an error's own fields.
LINE = {"line": {"type": "integer", "minimum": 1, "description": "Which line; the first is 1."}}


def ref(name: str) -> dict[str, str]:
    """Return a reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def closed(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """Return an object of these fields alone; unless `required` says less, all of them."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def array(items: dict[str, Any]) -> dict[str, Any]:
    """Return an array of any number of `items`."""
    return {"type": "array", "items": items}
