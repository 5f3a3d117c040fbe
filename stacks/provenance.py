"""What an endpoint's tags say of where it comes from."""

from __future__ import annotations

import re
from pathlib import Path

from stacks.catalog import Model
from stacks.checked_build import CheckedBuild
from stacks.environment import HubFile
from stacks.tags import tag_value

_VERSIONED = Path(__file__).resolve().parent.parent / "client/ballot/__init__.py"
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def version() -> str:
    """Return the version of Ballot, which the client's package states for the whole project."""
    match = _VERSION.search(_VERSIONED.read_text("utf-8"))
    assert match is not None, "this is a bug: the client's package has a version"
    return match[1]


def provenance_tags(
    *,
    image: CheckedBuild,
    model: Model | None,
    checked_model: CheckedBuild | None,
    hub: HubFile | None,
) -> dict[str, str]:
    """Return the tags of an endpoint that runs a checked image on a checked model, or on a hub's.

    Digest and checksum are those that were found where image and model lie, not those of the plan.
    """
    tags = {
        "ballot:version": tag_value(version()),
        "ballot:image-digest": image.attribute("ImageDigest"),
    }
    if model and checked_model:
        tags |= {
            "ballot:model": tag_value(model.name),
            "ballot:model-source": tag_value(model.origin),
            "ballot:model-sha256": checked_model.attribute("GgufSha256"),
        }
    if hub:
        tags["ballot:model-source"] = tag_value(f"{hub.repository}/{hub.file}")
    return tags
