"""Tags that say whose a resource is."""

from __future__ import annotations

import re
from collections.abc import Mapping

import aws_cdk as cdk
from constructs import IConstruct

# The tags that tell the costs of environments and endpoints apart, once they are activated for it.
ENVIRONMENT_TAG = "ballot:environment"
ENDPOINT_TAG = "ballot:endpoint"

_MOST_CHARACTERS = 256
_REFUSED = re.compile(r"[^\w .:/=+@-]")


def tag_stack(stack: cdk.Stack, environment: str, *tags: Mapping[str, str]) -> None:
    """Tag all that a stack holds; of two values for a key, the later one counts."""
    for some in ({ENVIRONMENT_TAG: environment}, *tags):
        tag(stack, some)


def tag(construct: IConstruct, tags: Mapping[str, str]) -> None:
    """Tag all that a construct holds; what is said of an inner construct counts more."""
    for key, value in tags.items():
        cdk.Tags.of(construct).add(key, value)


def tag_value(text: str) -> str:
    """Return a text as the value of a tag: cut, and with _ for what a tag cannot hold."""
    return _REFUSED.sub("_", text)[:_MOST_CHARACTERS]
