"""Tags that say whose a resource is."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk


def tag_stack(stack: cdk.Stack, environment: str, *tags: Mapping[str, str]) -> None:
    """Tag all that a stack holds; of two values for a key, the later one counts."""
    cdk.Tags.of(stack).add("ballot:environment", environment)
    for some in tags:
        for key, value in some.items():
            cdk.Tags.of(stack).add(key, value)
