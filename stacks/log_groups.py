"""Log groups that go with their stack."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct


def make_log_group(
    scope: Construct, id: str, *, name: str, retention_days: int, key: kms.IKey | None
) -> logs.LogGroup:
    """Make a log group before anything can write to it, so that destroying leaves none behind."""
    group = logs.LogGroup(
        scope,
        id,
        log_group_name=name,
        encryption_key=key,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    resource = group.node.default_child
    assert isinstance(resource, logs.CfnLogGroup), "this is a bug: a log group is one resource"
    resource.retention_in_days = retention_days
    return group
