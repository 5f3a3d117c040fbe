"""The role of a Lambda function: its own log, and what it is for."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.permissions import may_write_logs


def lambda_role(
    scope: Construct,
    id: str,
    log_group: logs.ILogGroup,
    statements: Sequence[iam.PolicyStatement],
) -> iam.Role:
    """Make the role of a function that logs to `log_group`."""
    policy = iam.PolicyDocument(statements=[may_write_logs(log_group), *statements])
    return iam.Role(
        scope,
        id,
        assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        inline_policies={"Own": policy},
    )
