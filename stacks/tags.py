"""Tags that say whose a resource is."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from constructs import IConstruct


def tag_stack(stack: cdk.Stack, environment: str, *tags: Mapping[str, str]) -> None:
    """Tag all that a stack holds; of two values for a key, the later one counts."""
    cdk.Tags.of(stack).add("ballot:environment", environment)
    for some in tags:
        tag(stack, some)


def tag(construct: IConstruct, tags: Mapping[str, str]) -> None:
    """Tag all that a construct holds; what is said of an inner construct counts more."""
    for key, value in tags.items():
        cdk.Tags.of(construct).add(key, value)
